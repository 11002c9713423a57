// Ranks that share memory, and a buffer of which each holds a slice.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "comm/testing/collectives.h"
#include "fsdp/memory_sharing.h"
#include "support/ranks/thread_ranks.h"

namespace fsdp::testing {

// Runs `body` on ranks that share memory.
inline void with_shared_memory(int size, const std::function<void(Communicator&)>& body, int64_t spare_memory = 0) {
  run_ranks(size, [&](std::shared_ptr<Communicator> comm) { body(*comm); },
            {.communicator = "shm", .spare_memory = spare_memory});
}

// A buffer of all ranks and this rank's slice of it.
struct SharedSlices {
  SharedSlices(Communicator& comm, int64_t numel, const SharedBufferOptions& options = {})
      : whole(comm.memory_sharing().buffer(comm.size() * numel * 4, options, id("buffer")).view(at::kFloat)),
        own(whole.narrow(0, comm.rank() * numel, numel)) {}
  at::Tensor whole;
  at::Tensor own;
};

// Returns numbers that differ between ranks.
inline at::Tensor values(int rank, int64_t numel) { return torch::arange(numel, torch::kFloat) + 100 * rank; }

inline at::Tensor all_values(int ranks, int64_t numel) {
  std::vector<at::Tensor> all;
  for (int rank = 0; rank < ranks; ++rank) all.push_back(values(rank, numel));
  return torch::cat(all);
}

}  // namespace fsdp::testing
