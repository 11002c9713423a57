#include "models/loss.h"

#include <ATen/ops/cross_entropy_loss.h>

namespace fsdp::models {

at::Tensor mean_cross_entropy(const at::Tensor& logits, const at::Tensor& labels) {
  const at::Tensor wide = logits.scalar_type() == at::kDouble ? logits : logits.to(at::kFloat);
  return at::cross_entropy_loss(wide.flatten(0, -2), labels.reshape(-1), /*weight=*/{}, at::Reduction::Mean,
                                kIgnoredLabel);
}

}  // namespace fsdp::models
