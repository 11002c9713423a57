// The time of single kernels on an otherwise idle device: a roofline with an efficiency that depends on the shape.
#pragma once

#include <cstdint>

#include "planner/time/device_speed.h"

namespace fsdp::planner {

// Returns the part of the peak rate that a product reaches: the measured one of the nearest shape, or else the formula
//   matmul_efficiency * (useful work / work of all tiles in full waves) * k / (k + 150).
double matmul_efficiency(const DeviceSpeed& speed, const MatmulShape& shape);

// Returns seconds. `element_bytes`: of an element of each factor and of the product.
double matmul_seconds(const DeviceSpeed& speed, const MatmulShape& shape, int64_t element_bytes);

// Returns the seconds of a product that reads and writes `bytes` in all, as a convolution reads its input once.
double product_seconds(const DeviceSpeed& speed, const MatmulShape& shape, double bytes);

// Returns the seconds of a fused attention kernel. `flops`: half of all for causal attention.
double attention_seconds(const DeviceSpeed& speed, double flops, Precision precision, bool backward);

// Returns the seconds of a kernel that reads and writes `bytes` in all. Without any, only the fixed part is left.
double memory_seconds(const DeviceSpeed& speed, double bytes);

}  // namespace fsdp::planner
