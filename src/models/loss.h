// The loss of all models in this folder.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace fsdp::models {

// The label of positions that do not count in the loss.
inline constexpr int64_t kIgnoredLabel = -100;

// Cross-entropy of logits [..., classes] and labels [...] int64: the mean over labels that are not kIgnoredLabel.
// Computed in fp32, or in fp64 for fp64 logits. If all labels are ignored it is NaN, as in transformers.
at::Tensor mean_cross_entropy(const at::Tensor& logits, const at::Tensor& labels);

}  // namespace fsdp::models
