// The loss of all models in this folder.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace fsdp::models {

// The label of positions that do not count in the loss.
inline constexpr int64_t kIgnoredLabel = -100;

// The logits that a head's products stand for: softcap * tanh(x / divisor / softcap), each step rounded as in
// transformers.
struct LogitScaling {
  double divisor = 1.0;
  std::optional<double> softcap = {};  // unset: x / divisor

  bool is_identity() const { return divisor == 1.0 && !softcap; }
  at::Tensor apply(const at::Tensor& products) const;
  // Returns the gradient with respect to the products, computed in the dtype of `gradient`, which is changed. `logits`:
  // the result of apply.
  at::Tensor backward(at::Tensor gradient, const at::Tensor& logits) const;
};

// Cross-entropy of logits [..., classes] and labels [...] int64: the mean over labels that are not kIgnoredLabel.
// Computed in fp32, or in fp64 for fp64 logits. If all labels are ignored it is NaN, as in transformers.
at::Tensor mean_cross_entropy(const at::Tensor& logits, const at::Tensor& labels);

}  // namespace fsdp::models
