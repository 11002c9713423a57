// The bytes that one kernel reads and writes.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/device/device_log.h"

namespace fsdp::planner {

struct KernelTraffic {
  int64_t bytes = 0;     // read and written; of a copy between host and device, the bytes that cross
  bool crosses = false;  // whether it is such a copy
};

// Arguments are read, results are written, and arguments that an operator changes are both. Elements that a tensor
// repeats count once, and tensors from which an operator picks some elements count no more than it picks. Caches are
// left out: each byte is taken from memory once.
KernelTraffic kernel_traffic(const KernelCall& call);

// A tensor that a kernel reads or writes.
struct TensorAccess {
  const void* address = nullptr;
  int64_t bytes = 0;  // as in KernelTraffic
  bool reads = false;
  bool writes = false;
};

std::vector<TensorAccess> tensor_accesses(const KernelCall& call);

}  // namespace fsdp::planner
