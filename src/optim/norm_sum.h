// Combines the norms of parts into the norm of the whole.
#pragma once

#include <ATen/core/Tensor.h>

#include <cmath>

namespace fsdp::optim {

// Accumulates norms: sums of powers, or the maximum for the infinity norm.
struct NormSum {
  explicit NormSum(double norm_type) : type(norm_type) {}
  void add(double norm) { merge(std::isinf(type) ? norm : std::pow(norm, type)); }
  void merge(double other) { sum = std::isinf(type) ? nan_max(sum, other) : sum + other; }
  double norm() const { return std::isinf(type) ? sum : std::pow(sum, 1.0 / type); }

  static double nan_max(double a, double b) { return std::isnan(a) || std::isnan(b) ? NAN : std::fmax(a, b); }

  double type;
  double sum = 0;
};

// Returns the norm of one tensor, computed in fp64 for fp64 and integers and in fp32 for other dtypes. Returns 0 for an
// undefined or empty tensor. Waits for the tensor's device.
double norm_of(const at::Tensor& tensor, double norm_type);

}  // namespace fsdp::optim
