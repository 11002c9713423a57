// The configuration of one training run. config_schema.h describes the keys, their types, accepted values and meanings
// in one table; the defaults are the initialisers below.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace fsdp::trainer {

using BoolOrInteger = std::variant<bool, int64_t>;

struct Config {
  // Model and data.
  std::optional<std::string> model_path;
  std::optional<nlohmann::json> model;  // a string or an object
  std::string dataset = "dummy";
  std::optional<std::string> eval_dataset;
  int64_t max_seq_length = 1024;
  std::optional<int64_t> max_target_length;
  std::optional<int64_t> image_size;
  int64_t train_batch_size = 4;
  int64_t eval_batch_size = 4;
  bool shuffle = true;
  int64_t seed = 42;

  // Optimization.
  int64_t max_steps = 100;
  int64_t gradient_accumulation_steps = 1;
  bool sync_each_batch = true;
  bool all_reduce_each_batch = true;
  std::optional<double> gradient_divide_factor;
  std::string optimizer = "adamw";
  double learning_rate = 5e-5;
  std::string lr_scheduler_type = "linear";
  int64_t warmup_steps = 0;
  double weight_decay = 0.0;
  double adam_beta1 = 0.9;
  double adam_beta2 = 0.999;
  double adam_epsilon = 1e-8;
  double sgd_momentum = 0.0;
  double clip_grad_norm = 1.0;
  bool fused_loss = false;
  std::string sparse_optimizer = "row_wise_adagrad";
  std::optional<double> sparse_learning_rate;

  // Precision.
  std::string dtype = "bf16";
  std::string master_dtype = "fp32";
  std::optional<std::string> mixed_precision_reduce_dtype;
  std::optional<std::string> mixed_precision_buffer_dtype;
  bool keep_low_precision_grads = false;
  std::vector<std::string> full_precision_classes;
  bool full_precision_in_eval = false;
  double fp16_init_scale = 65536;
  int64_t fp16_growth_interval = 2000;

  // Devices and communication.
  std::string device = "auto";
  std::string comm_backend = "auto";

  // Sharding.
  std::string sharding_strategy = "full_shard";
  std::optional<int64_t> sharding_factor;
  std::optional<BoolOrInteger> reshard_after_forward;
  std::string wrap_policy = "transformer";
  std::vector<std::string> wrap_classes;
  int64_t size_min_params = 30'000'000;
  std::optional<int64_t> auto_units_target_bytes;
  std::optional<int64_t> auto_units_memory_bound;
  bool use_orig_params = true;
  bool sync_module_states = false;
  bool cpu_offload = false;
  std::optional<std::string> offload_path;
  std::string backward_prefetch = "backward_pre";
  bool forward_prefetch = true;
  bool limit_all_gathers = true;
  int64_t max_gathered_units = 2;
  bool one_communicator = false;
  bool keep_memory = false;
  bool check_memory = true;
  bool activation_checkpointing = false;
  int64_t activation_checkpointing_every = 1;
  std::vector<std::string> activation_checkpointing_save_ops;

  // Checkpoints.
  std::optional<int64_t> save_steps;
  std::optional<int64_t> save_total_limit;
  bool async_save = false;
  std::optional<std::string> resume_from_checkpoint;

  // Divergence.
  std::string collective_check = "sampled";
  int64_t collective_check_first_steps = 3;
  int64_t collective_check_every = 100;
  std::optional<double> watchdog_seconds;
  bool collective_dump = true;

  // Output.
  std::string output_dir = "output";
  bool overwrite_output_dir = false;
  int64_t logging_steps = 1;
  std::vector<std::string> report_to;
  bool do_eval = false;
  bool save_final = false;
  std::string max_shard_size = "5GB";  // read by parse_byte_count
  std::optional<std::string> trace_path;
  int64_t trace_first_step = 3;
  int64_t trace_steps = 2;

  bool operator==(const Config&) const = default;
};

// Whether gradients are computed or reduced in fp16, so that losses must be scaled.
inline bool uses_fp16(const Config& config) {
  return config.dtype == "fp16" || config.mixed_precision_reduce_dtype == "fp16";
}
inline bool is_hybrid_strategy(const Config& config) {
  return config.sharding_strategy == "hybrid_shard" || config.sharding_strategy == "hybrid_shard_zero2";
}

}  // namespace fsdp::trainer
