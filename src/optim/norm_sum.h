// Norms of parts, and how they add up to the norm of the whole.
#pragma once

#include <ATen/core/Tensor.h>

#include <cmath>

namespace fsdp {

// Norms add up as powers; the infinity norm as a maximum.
struct NormSum {
  explicit NormSum(double norm_type) : type(norm_type) {}
  void add(double norm) { merge(std::isinf(type) ? norm : std::pow(norm, type)); }
  void merge(double other) { sum = std::isinf(type) ? nan_max(sum, other) : sum + other; }
  double norm() const { return std::isinf(type) ? sum : std::pow(sum, 1.0 / type); }

  static double nan_max(double a, double b) { return std::isnan(a) || std::isnan(b) ? NAN : std::fmax(a, b); }

  double type;
  double sum = 0;
};

// The norm of one tensor, computed in fp64 for fp64 and integers, in fp32 for other dtypes. 0 for an undefined or an
// empty one. Waits for the tensor's device.
double norm_of(const at::Tensor& tensor, double norm_type);

}  // namespace fsdp
