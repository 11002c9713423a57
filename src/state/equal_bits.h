// Bitwise comparison of tensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>

namespace fsdp::state {

// Whether two tensors of the same dtype are bitwise equal. A NaN equals itself, and zero does not equal -0.
inline bool equal_bits(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes()) return false;
  if (a.numel() == 0 || a.is_same(b)) return true;
  const auto bytes = [&](const at::Tensor& tensor) {
    return tensor.detach().to(a.device()).contiguous().view(-1).view(at::kByte);
  };
  return at::equal(bytes(a), bytes(b));
}

}  // namespace fsdp::state
