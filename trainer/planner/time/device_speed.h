// The speed of one device, as kernel times need it. Seconds, bytes, FLOPs.
#pragma once

#include <cstdint>
#include <vector>

namespace fsdp::planner {

// The arithmetic of a matrix product. kTensorFloat32: fp32 tensors multiplied by tensor cores.
enum class Precision : uint8_t { kFloat32, kTensorFloat32, kFloat16, kBFloat16, kFloat8 };

// `batch` products of m x k by k x n.
struct MatmulShape {
  int64_t batch = 1;
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  Precision precision = Precision::kBFloat16;
  // Whether the sum runs over tokens, so that both factors are read across their rows.
  bool weight_gradient = false;

  bool operator==(const MatmulShape&) const = default;
};

struct MeasuredMatmul {
  MatmulShape shape;
  double efficiency = 0;  // part of the peak rate

  bool operator==(const MeasuredMatmul&) const = default;
};

struct DeviceSpeed {
  // Peak rates of dense products, FLOP/s.
  double float32 = 0;
  double tensor_float32 = 0;
  double float16 = 0;
  double bfloat16 = 0;
  double float8 = 0;  // 0: the device has no such arithmetic
  int multiprocessors = 1;
  // Bytes read and written per second.
  double memory_bandwidth = 0;
  // The part of memory_bandwidth that a kernel of very many bytes reaches.
  double memory_efficiency = 1;
  // Bytes at which a kernel reaches half of that. A guess.
  double memory_half_bytes = 10e6;
  // The part of the peak rate that a product reaches if tiles fill all multiprocessors and k is large.
  double matmul_efficiency = 1;
  // The parts of the peak rate that fused attention reaches. Causal attention counts half of all FLOPs.
  double attention_forward = 1;
  double attention_backward = 1;
  // Time of a kernel that does nothing. A guess.
  double fixed_seconds = 3e-6;
  // Products near one of these take its efficiency.
  std::vector<MeasuredMatmul> measured = {};

  double peak(Precision precision) const;

  bool operator==(const DeviceSpeed&) const = default;
};

}  // namespace fsdp::planner
