// What the planned device reports while a program runs on it: kernels, memory, events, and what the host waits for.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <cstdint>

#include "base/allocation_tag.h"

namespace fsdp::planner {

enum class Place : uint8_t {
  kDevice,
  kHost,
  kPinnedHost,
  kSharedHost,  // memory that the ranks of a host share; its bytes are this rank's part
};

// One call of an operator that would have run a kernel. The references are valid during the report only.
struct KernelCall {
  const c10::OperatorHandle& op;
  const torch::jit::Stack& arguments;
  const torch::jit::Stack& results;
  Place place;
  int stream;  // of the device; -1 on the host
};

// An allocation as it was requested.
struct NewMemory {
  Place place;
  int64_t id;  // a number of its own for each allocation
  int64_t nbytes;
  int stream;           // that was current; -1 on the host
  const void* address;  // null: memory that no tensor stands for
  base::AllocationPurpose purpose;
  const char* maker;  // the operator that allocates a result; null: code outside of operators
};

// An implementation must not keep tensors: they would live longer than in a real run. Threads: reports come one at a
// time, from the threads that run operators.
class DeviceLog {
 public:
  virtual ~DeviceLog() = default;
  virtual void kernel(const KernelCall& call) = 0;
  virtual void allocated(const NewMemory& memory) = 0;
  virtual void freed(int64_t id) = 0;
  // `event`: a number of its own for each point that is recorded.
  virtual void recorded(int64_t event, int stream) = 0;
  virtual void blocked(int64_t event, int stream) = 0;
  virtual void host_waited_for_event(int64_t event) = 0;
  virtual void host_waited_for_stream(int stream) = 0;
};

}  // namespace fsdp::planner
