// Copies to host memory that are complete on return.
#pragma once

#include <ATen/core/Tensor.h>

namespace fsdp::state {

inline at::Tensor copy_on_host(const at::Tensor& tensor) {
  return tensor.to(at::kCPU, tensor.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
}
// A copy in host memory if `to_host` is set, else the tensor itself.
inline at::Tensor offloaded(const at::Tensor& tensor, bool to_host) { return to_host ? copy_on_host(tensor) : tensor; }

}  // namespace fsdp::state
