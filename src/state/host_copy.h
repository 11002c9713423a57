// Copies that are complete, and in host memory, when they are returned.
#pragma once

#include <ATen/core/Tensor.h>

namespace fsdp {

inline at::Tensor copy_on_host(const at::Tensor& tensor) {
  return tensor.to(at::kCPU, tensor.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
}
// The tensor itself, if it is not to be offloaded.
inline at::Tensor offloaded(const at::Tensor& tensor, bool to_host) { return to_host ? copy_on_host(tensor) : tensor; }

}  // namespace fsdp
