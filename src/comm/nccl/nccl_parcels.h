// Sends and receives of one rank to and from all ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "comm/nccl/nccl_library.h"

namespace fsdp::comm {

// The parts that one rank sends to and receives from each rank.
struct Parcels {
  std::vector<at::Tensor> inputs;
  std::vector<at::Tensor> outputs;
};

// Issues all sends and receives of this rank as one group, so NCCL starts them together. Skips empty parts.
ncclResult_t exchange_parcels(const NcclLibrary& nccl, ncclComm_t comm, int rank, const Parcels& parcels,
                              cudaStream_t stream);

}  // namespace fsdp::comm
