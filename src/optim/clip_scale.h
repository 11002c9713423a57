// The scale factor that clips gradients by their norm.
#pragma once

namespace fsdp::optim {

// Returns the factor by which gradients with this norm must be multiplied so that their norm is at most `max_norm`, as
// in torch.nn.utils.clip_grad_norm_. Returns 1 if the gradients are small enough, and NaN if the norm is NaN.
inline double clip_scale(double max_norm, double norm) {
  const double scale = max_norm / (norm + 1e-6);
  return scale >= 1 ? 1.0 : scale;
}

}  // namespace fsdp::optim
