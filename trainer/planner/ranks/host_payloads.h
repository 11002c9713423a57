// The host memory that a collective in flight takes among ranks on CPUs, beside the caller's tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "comm/collective_shapes.h"

namespace fsdp::planner {

struct HostCollective {
  comm::CollectiveKind kind = comm::CollectiveKind::kAllGather;
  at::Tensor sent;             // this rank's contribution; undefined: it contributes nothing
  int64_t own_part_bytes = 0;  // of the sum, what this rank computes
};

// Of one group.
class HostPayloads {
 public:
  virtual ~HostPayloads() = default;
  // Returns the memory. It must go back to release() when the collective has ended on this rank.
  virtual std::vector<at::Tensor> take(const HostCollective& collective) = 0;
  virtual void release(std::vector<at::Tensor> memory) = 0;
  // See Communicator::trim.
  virtual void trim() {}
};

// Gloo: headers of all ranks, and the contributions of the others to this rank's part of a sum.
std::unique_ptr<HostPayloads> make_gloo_payloads(int ranks);

// Shared memory: a copy of what the others read, unless it lies in shared memory already, and the own part of an
// all-reduce.
std::unique_ptr<HostPayloads> make_shm_payloads();

}  // namespace fsdp::planner
