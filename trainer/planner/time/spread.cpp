#include "planner/time/spread.h"

#include <cmath>
#include <numbers>

namespace fsdp::planner {

// The integral of x * count * density(x) * distribution(x)^(count - 1). The integrand is smooth and vanishes at both
// ends, where the trapezoidal rule converges faster than any power of the width.
double mean_largest_normal(int64_t count) {
  constexpr double kWidth = 1.0 / 256;
  constexpr int kEnd = 12 * 256;  // in widths
  if (count <= 1) return 0;
  const auto n = static_cast<double>(count);
  double sum = 0;
  for (int i = -kEnd; i <= kEnd; ++i) {
    const double x = i * kWidth;
    const double log_distribution = std::log1p(-0.5 * std::erfc(x / std::numbers::sqrt2));
    const double log_density = -0.5 * x * x - 0.5 * std::log(2 * std::numbers::pi);
    sum += x * n * std::exp(log_density + (n - 1) * log_distribution);
  }
  return sum * kWidth;
}

}  // namespace fsdp::planner
