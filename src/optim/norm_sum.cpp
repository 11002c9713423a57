#include "optim/norm_sum.h"

#include <ATen/ops/linalg_vector_norm.h>

namespace fsdp::optim {

double norm_of(const at::Tensor& tensor, double norm_type) {
  if (!tensor.defined() || tensor.numel() == 0) return 0;
  const at::ScalarType dtype = tensor.scalar_type();
  const bool integral = c10::isIntegralType(dtype, /*includeBool=*/true);
  const at::ScalarType wide = integral || dtype == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor values = integral || c10::isFloat8Type(dtype) ? tensor.to(wide) : tensor;
  return at::linalg_vector_norm(values, norm_type, std::nullopt, false, wide).item<double>();
}

}  // namespace fsdp::optim
