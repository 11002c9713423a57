#include "planner/time/kernel_time.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace fsdp::planner {
namespace {

// The length of k at which a product reaches half of its rate. Source: fits the 514 and 183 products measured on a
// B200 and an A100 PCIe in SimuMax (configs/system), with mean errors of 10.0 % and 4.5 % after a scale for each.
constexpr double kHalfDepth = 150;
// Weight gradients compared with other products. Source: the same fit.
constexpr double kWeightGradientFactor = 0.97;
// The distance, in logarithms of sizes, within which a measured shape predicts as well as the formula. Source: leaving
// each of these products out in turn; at 0.2 to 0.5 the nearest one errs by a sixth to a third more.
constexpr double kNearShape = 0.2;

struct OutputTile {
  int64_t rows;
  int64_t columns;
};
// Tiles of cuBLAS's common kernels.
constexpr std::array<OutputTile, 3> kOutputTiles = {{{256, 128}, {128, 128}, {128, 64}}};

int64_t tiles_along(int64_t size, int64_t tile) { return (size + tile - 1) / tile; }

// Returns the useful part of the work of all multiprocessors over whole waves of tiles, for the best size of tile.
double wave_efficiency(const MatmulShape& shape, int multiprocessors) {
  const double useful = static_cast<double>(shape.batch) * static_cast<double>(shape.m) * static_cast<double>(shape.n);
  double best = 0;
  for (const OutputTile& tile : kOutputTiles) {
    const int64_t tiles = shape.batch * tiles_along(shape.m, tile.rows) * tiles_along(shape.n, tile.columns);
    const int64_t slots = tiles_along(tiles, multiprocessors) * multiprocessors;
    best = std::max(best, useful / (static_cast<double>(slots) * static_cast<double>(tile.rows * tile.columns)));
  }
  return best;
}

double shape_distance(const MatmulShape& a, const MatmulShape& b) {
  const auto ratio = [](int64_t x, int64_t y) { return std::log(static_cast<double>(x) / static_cast<double>(y)); };
  return std::hypot(std::hypot(ratio(a.batch, b.batch), ratio(a.m, b.m)), std::hypot(ratio(a.n, b.n), ratio(a.k, b.k)));
}

const MeasuredMatmul* nearest_measured(const DeviceSpeed& speed, const MatmulShape& shape) {
  const MeasuredMatmul* nearest = nullptr;
  double least = kNearShape;
  for (const MeasuredMatmul& measured : speed.measured) {
    if (measured.shape.precision != shape.precision) continue;
    if (measured.shape.weight_gradient != shape.weight_gradient) continue;
    const double distance = shape_distance(measured.shape, shape);
    if (distance > least) continue;
    least = distance;
    nearest = &measured;
  }
  return nearest;
}

bool is_empty(const MatmulShape& shape) { return shape.batch <= 0 || shape.m <= 0 || shape.n <= 0 || shape.k <= 0; }

// Returns seconds without the fixed part.
double transfer_seconds(const DeviceSpeed& speed, double bytes) {
  if (bytes <= 0) return 0;
  return (bytes + speed.memory_half_bytes) / (speed.memory_bandwidth * speed.memory_efficiency);
}

}  // namespace

double DeviceSpeed::peak(Precision precision) const {
  switch (precision) {
    case Precision::kFloat32:
      return float32;
    case Precision::kTensorFloat32:
      return tensor_float32;
    case Precision::kFloat16:
      return float16;
    case Precision::kBFloat16:
      return bfloat16;
    case Precision::kFloat8:
      return float8;
  }
  return std::numeric_limits<double>::quiet_NaN();
}

double matmul_efficiency(const DeviceSpeed& speed, const MatmulShape& shape) {
  if (is_empty(shape)) return speed.matmul_efficiency;
  if (const MeasuredMatmul* measured = nearest_measured(speed, shape)) return measured->efficiency;
  const auto k = static_cast<double>(shape.k);
  return speed.matmul_efficiency * wave_efficiency(shape, speed.multiprocessors) * k / (k + kHalfDepth) *
         (shape.weight_gradient ? kWeightGradientFactor : 1);
}

double matmul_seconds(const DeviceSpeed& speed, const MatmulShape& shape, int64_t element_bytes) {
  const auto m = static_cast<double>(shape.m);
  const auto n = static_cast<double>(shape.n);
  const auto k = static_cast<double>(shape.k);
  const double elements = static_cast<double>(shape.batch) * (m * k + k * n + m * n);
  return product_seconds(speed, shape, elements * static_cast<double>(element_bytes));
}

double product_seconds(const DeviceSpeed& speed, const MatmulShape& shape, double bytes) {
  if (is_empty(shape)) return speed.fixed_seconds;
  const double flops = 2 * static_cast<double>(shape.batch) * static_cast<double>(shape.m) *
                       static_cast<double>(shape.n) * static_cast<double>(shape.k);
  const double arithmetic = flops / (speed.peak(shape.precision) * matmul_efficiency(speed, shape));
  return speed.fixed_seconds + std::max(arithmetic, transfer_seconds(speed, bytes));
}

double attention_seconds(const DeviceSpeed& speed, double flops, Precision precision, bool backward) {
  const double efficiency = backward ? speed.attention_backward : speed.attention_forward;
  return speed.fixed_seconds + std::max(flops, 0.0) / (speed.peak(precision) * efficiency);
}

double memory_seconds(const DeviceSpeed& speed, double bytes) {
  return speed.fixed_seconds + transfer_seconds(speed, bytes);
}

}  // namespace fsdp::planner
