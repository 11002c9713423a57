// Names of collectives, and the numbers that ranks contribute to them.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <string>

#include "fsdp/communicator.h"

namespace fsdp::testing {

// Returns the identity of a collective in forward.
inline CollectiveId id(const std::string& name, uint64_t generation = 0) { return {name, generation, Pass::kForward}; }

// Returns the contribution of a rank: different for each rank, exact in every dtype.
inline at::Tensor contribution(int rank, int64_t numel, at::ScalarType dtype) {
  return ((torch::arange(numel) * (rank + 3)) % 17 - 5 * rank).to(dtype);
}

inline at::Tensor sum_of_contributions(int size, int64_t numel, double scale) {
  auto sum = torch::zeros({numel}, torch::kDouble);
  for (int rank = 0; rank < size; ++rank) sum += contribution(rank, numel, torch::kDouble);
  return sum * scale;
}

}  // namespace fsdp::testing
