// The training job of one variant of `benchmarks/compare`: the JSON object that both sides take.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "fsdp/options.h"

namespace fsdp::benchmarks {

// Every key is required, and no other key is accepted: an error names the key. benchmarks/comparison/jobs.py writes
// jobs.
struct TrainingJob {
  std::string model;  // folder with config.json and weights
  // A safetensors file with input_ids (and labels, for sequence-to-sequence models), or with pixel_values and labels,
  // or with numeric, categorical and labels.
  std::string samples;
  ShardingStrategy strategy = ShardingStrategy::kFullShard;
  BackwardPrefetch backward_prefetch = BackwardPrefetch::kPre;
  bool forward_prefetch = true;
  bool limit_all_gathers = true;
  std::optional<int> sharding_factor;  // ranks in a shard group, for hybrid strategies
  bool shares_memory = false;          // ranks use shared memory instead of Gloo
  bool bf16 = false;                   // parameters are gathered and used in bf16, gradients reduced in fp32
  bool checkpointing = false;          // every block is recomputed in backward
  bool offload = false;                // shards and optimizer state lie in files
  bool keep_memory = false;
  bool auto_units = false;  // units from the execution order instead of one for each block
  int64_t batch = 1;        // samples of one rank in one step
  int64_t warm_up = 1;
  int64_t steps = 1;  // measured steps, after the warm-up steps
  double learning_rate = 1e-4;
  double clip_grad_norm = 1.0;
  int threads = 1;
  std::optional<int64_t> memory_limit;  // bytes in addition to the memory after a small step
};

TrainingJob read_training_job(const std::string& text);

}  // namespace fsdp::benchmarks
