// What one variant of `benchmarks/compare` trains: the JSON object that both sides take.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "fsdp/options.h"

namespace fsdp::benchmarks {

// Every key is required and no other is accepted; an error names it. benchmarks/comparison/jobs.py writes them.
struct TrainingJob {
  std::string model;  // folder with config.json and the weights
  // A safetensors file: input_ids (and labels, for sequence to sequence); pixel_values and labels; or numeric,
  // categorical and labels.
  std::string samples;
  ShardingStrategy strategy = ShardingStrategy::kFullShard;
  BackwardPrefetch backward_prefetch = BackwardPrefetch::kPre;
  bool forward_prefetch = true;
  bool limit_all_gathers = true;
  std::optional<int> sharding_factor;  // ranks of a shard group, of hybrid strategies
  bool shares_memory = false;          // ranks do, instead of going through Gloo
  bool bf16 = false;                   // parameters are gathered and used in bf16, and reduced in fp32
  bool checkpointing = false;          // every block is recomputed in backward
  bool offload = false;                // shards and optimizer state lie in files
  bool keep_memory = false;
  bool auto_units = false;  // units from the order of use instead of a unit for each block
  int64_t batch = 1;        // samples of a rank and step
  int64_t warm_up = 1;
  int64_t steps = 1;  // that count, after those that warm up
  double learning_rate = 1e-4;
  double clip_grad_norm = 1.0;
  int threads = 1;
  std::optional<int64_t> memory_limit;  // bytes that the process may take beside what it has after a small step
};

TrainingJob read_training_job(const std::string& text);

}  // namespace fsdp::benchmarks
