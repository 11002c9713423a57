#include "models/loss.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/tanh_backward.h>

namespace fsdp::models {

at::Tensor LogitScaling::apply(const at::Tensor& products) const {
  const at::Tensor divided = divisor == 1.0 ? products : products / divisor;
  return softcap ? at::tanh(divided / *softcap) * *softcap : divided;
}

at::Tensor LogitScaling::backward(at::Tensor gradient, const at::Tensor& logits) const {
  if (softcap) at::tanh_backward_out(gradient, gradient, logits.to(gradient.scalar_type()) / *softcap);
  return divisor == 1.0 ? gradient : gradient.div_(divisor);
}

at::Tensor mean_cross_entropy(const at::Tensor& logits, const at::Tensor& labels) {
  const at::Tensor wide = logits.scalar_type() == at::kDouble ? logits : logits.to(at::kFloat);
  return at::cross_entropy_loss(wide.flatten(0, -2), labels.reshape(-1), /*weight=*/{}, at::Reduction::Mean,
                                kIgnoredLabel);
}

}  // namespace fsdp::models
