// The loss of all models here.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace fsdp::models {

// A label that is not predicted.
inline constexpr int64_t kIgnoredLabel = -100;

// Of logits [..., classes] and labels [...] int64: the mean over labels that are not kIgnoredLabel. Formed in fp32, for
// fp64 logits in fp64. With no label to predict it is NaN, as in transformers.
at::Tensor mean_cross_entropy(const at::Tensor& logits, const at::Tensor& labels);

}  // namespace fsdp::models
