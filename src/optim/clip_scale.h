// How gradients are clipped by their norm.
#pragma once

namespace fsdp {

// The factor by which gradients of this norm are multiplied so that it is at most `max_norm`, as in
// torch.nn.utils.clip_grad_norm_; 1 for those that are small enough. NaN for a norm that is NaN.
inline double clip_scale(double max_norm, double norm) {
  const double scale = max_norm / (norm + 1e-6);
  return scale >= 1 ? 1.0 : scale;
}

}  // namespace fsdp
