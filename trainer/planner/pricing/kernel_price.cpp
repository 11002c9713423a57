#include "planner/pricing/kernel_price.h"

#include <c10/core/ScalarType.h>

#include <string>

#include "planner/time/kernel_time.h"

namespace fsdp::planner {
namespace {

// Bytes per second that the host's kernels of one rank read and write, while the other ranks of the host do the same. A
// guess.
constexpr double kHostMemoryBandwidth = 20e9;

double real(int64_t value) { return static_cast<double>(value); }

MatmulShape shape_of(const ProductWork& work, Precision precision) {
  return {.batch = work.batch,
          .m = work.m,
          .n = work.n,
          .k = work.k,
          .precision = precision,
          .weight_gradient = work.across_rows};
}

double forward_flops(const ProductWork& work) {
  return 2 * real(work.batch) * real(work.m) * real(work.n) * real(work.k);
}

// The gradient of a weight is a sum over positions; that of an input is as much work as forward.
double convolution_backward_seconds(const ProductWork& work, const DeviceSpeed& speed, Precision precision,
                                    double bytes) {
  MatmulShape weight = shape_of(work, precision);
  std::swap(weight.m, weight.k);
  weight.weight_gradient = true;
  const double gradients = forward_flops(work) > 0 ? work.flops / forward_flops(work) : 0;
  double seconds = product_seconds(speed, weight, bytes / 2);
  if (gradients > 1) seconds += product_seconds(speed, shape_of(work, precision), bytes / 2);
  return seconds;
}

// Casting an operand to fp8 reads two bytes of an element and writes one; its scale comes with the kernel that made it.
// A guess.
constexpr double kCastTraffic = 3;

bool runs_in_float8(const ProductWork& work, const KernelOptions& options) {
  constexpr int64_t kMultiple = 16;  // of sizes, for fp8 products of cuBLASLt
  if (!options.stack.float8_products || work.type != ProductType::kMatrices || work.batch != 1) return false;
  for (const int64_t size : {work.m, work.n, work.k}) {
    if (size % kMultiple != 0 || size == options.vocabulary) return false;
  }
  return work.dtype == at::kBFloat16;
}

KernelPrice price_float8(const ProductWork& work, const DeviceSpeed& speed) {
  const double operands = real(work.m) * real(work.k) + real(work.k) * real(work.n);
  const double bytes = operands + 2 * real(work.m) * real(work.n);
  return {.seconds = product_seconds(speed, shape_of(work, Precision::kFloat8), bytes) +
                     memory_seconds(speed, kCastTraffic * operands),
          .least = work.flops / speed.float8,
          .kind = WorkKind::kMatrixProducts};
}

// Measured rates of attention (default_speeds.cpp) count the five products that backward computes; ProductWork counts
// four.
double attention_work_seconds(const ProductWork& work, const DeviceSpeed& speed, Precision precision) {
  const bool backward = work.type == ProductType::kAttentionBackward;
  return attention_seconds(speed, work.flops * (work.causal ? 0.5 : 1) * (backward ? 1.25 : 1), precision, backward);
}

KernelPrice price_product(const ProductWork& work, double bytes, const DeviceSpeed& speed,
                          const KernelOptions& options) {
  if (runs_in_float8(work, options)) return price_float8(work, speed);
  const bool convolution = work.type == ProductType::kConvolution || work.type == ProductType::kConvolutionBackward;
  const Precision precision = precision_of(work.dtype, convolution);
  KernelPrice price{.least = work.flops * (work.causal ? 0.5 : 1) / speed.peak(precision),
                    .kind = WorkKind::kMatrixProducts};
  switch (work.type) {
    case ProductType::kMatrices:
      price.seconds =
          matmul_seconds(speed, shape_of(work, precision), static_cast<int64_t>(c10::elementSize(work.dtype)));
      break;
    case ProductType::kConvolution:
      price.seconds = product_seconds(speed, shape_of(work, precision), bytes);
      break;
    case ProductType::kConvolutionBackward:
      price.seconds = convolution_backward_seconds(work, speed, precision, bytes);
      break;
    case ProductType::kAttention:
    case ProductType::kAttentionBackward:
      price.kind = WorkKind::kAttention;
      price.seconds = attention_work_seconds(work, speed, precision) / options.stack.attention_rate;
      break;
  }
  return price;
}

bool is_adam(const std::string& name) { return name.rfind("aten::_fused_adam", 0) == 0; }

}  // namespace

// LibTorch's defaults (at::Context): cuDNN may take TF32 for fp32, cuBLAS may not.
Precision precision_of(at::ScalarType dtype, bool convolution) {
  if (dtype == at::kBFloat16) return Precision::kBFloat16;
  if (dtype == at::kHalf) return Precision::kFloat16;
  return convolution ? Precision::kTensorFloat32 : Precision::kFloat32;
}

KernelPrice price_kernel(const Tape& tape, const TapeEntry& entry, const Cluster& cluster,
                         const KernelOptions& options) {
  double bytes = real(entry.bytes);
  if (entry.id >= 0) {
    ProductWork work = tape.products().at(static_cast<size_t>(entry.id));
    work.causal = work.causal || (work.biased && options.stack.skips_masked_keys);
    return price_product(work, bytes, cluster.speed, options);
  }
  if (is_adam(tape.name(entry))) bytes *= options.stack.optimizer_traffic;
  if (entry.bytes == 0) return {};
  if (entry.crosses) {
    const double seconds = bytes / cluster.links.host_copy;
    return {.seconds = cluster.speed.fixed_seconds + seconds, .least = seconds, .kind = WorkKind::kCopies};
  }
  return {.seconds = memory_seconds(cluster.speed, bytes),
          .least = bytes / cluster.speed.memory_bandwidth,
          .kind = WorkKind::kMemoryBound};
}

double host_kernel_seconds(const TapeEntry& entry, const Cluster& cluster) {
  return cluster.host_per_kernel + real(entry.bytes) / kHostMemoryBandwidth;
}

}  // namespace fsdp::planner
