// Whether a planned run fits its machine.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "planner/memory/device_replay.h"
#include "planner/memory/memory_use.h"
#include "planner/tape/tape.h"
#include "planner/target/cluster.h"

namespace fsdp::planner {

enum class Verdict : uint8_t {
  kFits,
  kTight,  // fits by less than the error that plans have
  kDoesNotFit,
  kUnknown,  // the plan knows no capacity
};
const char* to_string(Verdict verdict);

// Plans of memory are taken to be wrong by at most this part of the total. A guess until more runs on devices are
// compared.
constexpr double kMemoryError = 0.03;

// Bytes of one rank's device.
struct DeviceForecast {
  MemoryUse use;        // bytes as they were requested: exact, but for what kernels take for themselves
  DeviceReplay replay;  // with the memory that is left to segments; without a limit if the run does not fit
  int64_t capacity = 0;
  int64_t context = 0;        // a guess: DeviceProfile::context
  int64_t communicators = 0;  // a guess: what NCCL takes for all groups
  int64_t total = 0;          // reserved, context and communicators
  Verdict verdict = Verdict::kUnknown;
};

// Bytes of host memory.
struct HostForecast {
  MemoryUse use;                    // tensors of one rank: pageable memory, and its part of what ranks share
  int64_t shared = 0;               // the peak of that part alone
  int64_t pinned = 0;               // of one rank, in the blocks of its allocator
  int64_t process = 0;              // of one rank, beside its tensors; a guess if it has a device
  int64_t per_host = 0;             // of all ranks of one host
  int64_t with_holes = 0;           // the same, with as many holes in the ranks' heaps as were seen
  std::optional<int64_t> capacity;  // of one host
  Verdict verdict = Verdict::kUnknown;
};

struct MemoryForecast {
  std::optional<DeviceForecast> device;  // none: ranks compute on CPUs
  HostForecast host;

  // The worse of the two.
  Verdict verdict() const;
};

// `host_memory`: bytes of one host, if known.
MemoryForecast forecast_memory(const Tape& tape, const std::vector<size_t>& step_bounds, const Cluster& cluster,
                               std::optional<int64_t> host_memory);

// Returns the verdict for `total` bytes where there are `capacity`.
Verdict verdict_for(int64_t total, int64_t capacity);

}  // namespace fsdp::planner
