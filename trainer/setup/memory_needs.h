// Estimates whether a run fits into the memory of a host, before any of that memory is allocated.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>

#include "comm/shm/memory_headroom.h"
#include "config/config.h"
#include "data/dataset.h"
#include "models/pretrained_model.h"

namespace fsdp::trainer {

// The number of ranks on one host and in the whole run.
struct HostRanks {
  int64_t local = 1;
  int64_t world = 1;
  c10::Device device = c10::kCPU;
};

// A lower bound on the bytes that all ranks of one host together hold at the end of a backward. It excludes
// activations, buffers, memory on a GPU, files of offload_path, and embedding tables that are split over ranks.
struct MemoryNeeds {
  int64_t parameters = 0;
  int64_t gradients = 0;
  int64_t optimizer_state = 0;
  int64_t gathered = 0;  // the largest parameter, in the compute dtype; 0: shards have it, or it is on a GPU
  int64_t total() const { return parameters + gradients + optimizer_state + gathered; }
};
MemoryNeeds memory_needs(const Config& config, const models::PretrainedModel& model, const HostRanks& ranks);

// Throws a ConfigError with the figures if these needs, or the order of the samples of `train`, exceed `headroom` plus
// the free swap space. Does nothing if the key `check_memory` is false. Must be called before ranks of this run
// allocate memory.
void check_memory(const Config& config, const models::PretrainedModel& model, const Dataset& train,
                  const HostRanks& ranks, const comm::MemoryHeadroom& headroom = comm::memory_headroom());

}  // namespace fsdp::trainer
