// Messages between two ranks of a host, in memory that they share.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "comm/shm/shm_channels.h"
#include "comm/shm/shm_exchange.h"
#include "fsdp/communicator.h"

namespace fsdp::comm {

// The messages of one communicator. Threads: one at a time, as for the communicator.
class ShmMessages {
 public:
  ShmMessages(std::shared_ptr<ShmContext> context, std::unique_ptr<ShmChannels> channels);

  // Copies the tensor unless it lies in this rank's heap, so its Work has nothing to wait for in the first case.
  std::unique_ptr<Work> send(const at::Tensor& tensor, int to, const CollectiveId& id);
  std::unique_ptr<Work> recv(const at::Tensor& output, int from, const CollectiveId& id);

 private:
  std::shared_ptr<ShmContext> context_;
  std::shared_ptr<ShmChannels> channels_;
  std::vector<uint64_t> expected_;  // number of receives, by sender
};

}  // namespace fsdp::comm
