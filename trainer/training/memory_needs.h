// Whether a run can fit into the memory of a host, known before any of it is taken.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>

#include "comm/memory_headroom.h"
#include "config/config.h"
#include "data/dataset.h"
#include "models/pretrained_model.h"

namespace fsdp::trainer {

// The ranks of one host among all.
struct HostRanks {
  int64_t local = 1;
  int64_t world = 1;
  c10::Device device = c10::kCPU;
};

// Bytes that all ranks of one host hold at the end of a backward, at least: no activations, no buffers. What is on a
// GPU or in files of offload_path is not among them, and neither are embedding tables that are split over ranks.
struct MemoryNeeds {
  int64_t parameters = 0;
  int64_t gradients = 0;
  int64_t optimizer_state = 0;
  int64_t gathered = 0;  // the largest parameter, in the dtype of compute; 0 where the shards themselves are that
  int64_t total() const { return parameters + gradients + optimizer_state + gathered; }
};
MemoryNeeds memory_needs(const Config& config, const models::PretrainedModel& model, const HostRanks& ranks);

// A ConfigError, with the figures, where these needs, or the order of the samples of `train`, are more than `headroom`
// and the free swap space leave. Says nothing with the key `check_memory` false. To be called before ranks of this run
// take memory.
void check_memory(const Config& config, const models::PretrainedModel& model, const Dataset& train,
                  const HostRanks& ranks, const MemoryHeadroom& headroom = memory_headroom());

}  // namespace fsdp::trainer
