// The configuration of one training run, in sections. config_schema.h describes the keys of its JSON file, which has no
// sections: their types, accepted values and meanings in one table. The defaults are the initialisers below.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "fsdp/options.h"
#include "sparse/row_rule.h"

namespace fsdp::trainer {

using BoolOrInteger = std::variant<bool, int64_t>;

// config_names.h has the names of these and of the library's enumerations.
enum class LrSchedulerType : uint8_t { kConstant, kLinear, kCosine };
enum class AttentionMask : uint8_t { kCausal, kBlockCausal };  // attn_mask_type
enum class DeviceChoice : uint8_t { kAuto, kCpu, kCuda };
enum class UnitsBy : uint8_t { kTransformer, kSize, kAutoUnits, kNone };  // wrap_policy
enum class ReportTo : uint8_t { kCsv, kTensorBoard };

struct ModelConfig {
  std::optional<std::string> path;           // model_path
  std::optional<nlohmann::json> definition;  // model: a string or an object
  bool fused_loss = false;
  AttentionMask attention_mask = AttentionMask::kCausal;
  bool activation_checkpointing = false;
  int64_t activation_checkpointing_every = 1;
  std::vector<std::string> activation_checkpointing_save_ops;

  bool operator==(const ModelConfig&) const = default;
};

struct DataConfig {
  std::string dataset = "dummy";
  std::optional<std::string> eval_dataset;
  int64_t max_seq_length = 1024;
  std::optional<int64_t> max_target_length;
  std::optional<int64_t> image_size;
  int64_t train_batch_size = 4;
  int64_t eval_batch_size = 4;
  bool shuffle = true;

  bool operator==(const DataConfig&) const = default;
};

// The steps of the run, and the gradients of a step.
struct StepsConfig {
  int64_t seed = 42;
  int64_t max_steps = 100;
  int64_t gradient_accumulation_steps = 1;
  bool sync_each_batch = true;
  bool all_reduce_each_batch = true;
  std::optional<double> gradient_divide_factor;
  double clip_grad_norm = 1.0;

  bool operator==(const StepsConfig&) const = default;
};

struct OptimizerConfig {
  std::string name = "adamw";  // optimizer: one of the table in optimizers/registry.h
  double learning_rate = 5e-5;
  LrSchedulerType lr_scheduler_type = LrSchedulerType::kLinear;
  int64_t warmup_steps = 0;
  double weight_decay = 0.0;
  double adam_beta1 = 0.9;
  double adam_beta2 = 0.999;
  double adam_epsilon = 1e-8;
  double sgd_momentum = 0.0;
  sparse::RowRule sparse_optimizer = sparse::RowRule::kRowWiseAdagrad;
  std::optional<double> sparse_learning_rate;

  bool operator==(const OptimizerConfig&) const = default;
};

struct PrecisionConfig {
  c10::ScalarType dtype = c10::kBFloat16;
  c10::ScalarType master_dtype = c10::kFloat;
  std::optional<c10::ScalarType> reduce_dtype;  // mixed_precision_reduce_dtype
  std::optional<c10::ScalarType> buffer_dtype;  // mixed_precision_buffer_dtype
  bool keep_low_precision_grads = false;
  std::vector<std::string> full_precision_classes;
  bool full_precision_in_eval = false;
  double fp16_init_scale = 65536;
  int64_t fp16_growth_interval = 2000;

  bool operator==(const PrecisionConfig&) const = default;
};

struct CommunicationConfig {
  DeviceChoice device = DeviceChoice::kAuto;
  std::string backend = "auto";  // comm_backend: `auto`, or one of the table in comm/backend_table.h

  bool operator==(const CommunicationConfig&) const = default;
};

struct ShardingConfig {
  ShardingStrategy strategy = ShardingStrategy::kFullShard;  // sharding_strategy
  std::optional<int64_t> factor;                             // sharding_factor
  std::optional<BoolOrInteger> reshard_after_forward;
  UnitsBy wrap_policy = UnitsBy::kTransformer;
  std::vector<std::string> wrap_classes;
  int64_t size_min_params = 30'000'000;
  std::optional<int64_t> auto_units_target_bytes;
  std::optional<int64_t> auto_units_memory_bound;
  bool use_orig_params = true;
  bool sync_module_states = false;
  bool cpu_offload = false;
  std::optional<std::string> offload_path;
  BackwardPrefetch backward_prefetch = BackwardPrefetch::kPre;
  bool forward_prefetch = true;
  bool limit_all_gathers = true;
  int64_t max_gathered_units = 2;
  bool one_communicator = false;
  bool keep_memory = false;
  bool check_memory = true;

  bool operator==(const ShardingConfig&) const = default;
};

// Degrees of a mesh of ranks (fsdp/device_mesh.h); config/parallel_degrees.h has their meaning for a number of ranks.
struct ParallelismConfig {
  std::optional<int64_t> replicate_degree;           // data_parallel_replicate_degree
  std::optional<int64_t> shard_degree;               // data_parallel_shard_degree
  int64_t pipeline_degree = 1;                       // pipeline_parallel_degree
  std::string pipeline_schedule = "1F1B";            // pipeline_parallel_schedule
  std::optional<int64_t> pipeline_layers_per_stage;  // pipeline_parallel_layers_per_stage
  int64_t pipeline_first_stage_less_layers = 1;      // pipeline_parallel_first_stage_less_layers
  int64_t pipeline_last_stage_less_layers = 1;       // pipeline_parallel_last_stage_less_layers
  int64_t tensor_degree = 1;                         // tensor_parallel_degree
  bool sequence_parallel = true;                     // enable_sequence_parallel

  // Whether ranks that split weights split the positions between layers, too.
  bool splits_positions() const { return tensor_degree > 1 && sequence_parallel; }

  bool operator==(const ParallelismConfig&) const = default;
};

struct CheckpointsConfig {
  std::optional<int64_t> save_steps;
  std::optional<int64_t> save_total_limit;
  bool async_save = false;
  std::optional<std::string> resume_from_checkpoint;

  bool operator==(const CheckpointsConfig&) const = default;
};

struct DivergenceConfig {
  CollectiveCheckLevel collective_check = CollectiveCheckLevel::kSampled;
  int64_t collective_check_first_steps = 3;
  int64_t collective_check_every = 100;
  std::optional<double> watchdog_seconds;
  bool collective_dump = true;

  bool operator==(const DivergenceConfig&) const = default;
};

struct OutputConfig {
  std::string output_dir = "output";
  bool overwrite_output_dir = false;
  int64_t logging_steps = 1;
  std::vector<ReportTo> report_to;
  bool do_eval = false;
  bool save_final = false;
  std::string max_shard_size = "5GB";  // read by parse_byte_count

  bool operator==(const OutputConfig&) const = default;
};

struct TraceConfig {
  std::optional<std::string> path;  // trace_path
  int64_t first_step = 3;           // trace_first_step
  int64_t steps = 2;                // trace_steps

  bool operator==(const TraceConfig&) const = default;
};

struct Config {
  ModelConfig model;
  DataConfig data;
  StepsConfig steps;
  OptimizerConfig optimizer;
  PrecisionConfig precision;
  CommunicationConfig communication;
  ShardingConfig sharding;
  ParallelismConfig parallelism;
  CheckpointsConfig checkpoints;
  DivergenceConfig divergence;
  OutputConfig output;
  TraceConfig trace;

  bool operator==(const Config&) const = default;
};

// Whether gradients are computed or reduced in fp16, so that losses must be scaled.
inline bool uses_fp16(const PrecisionConfig& precision) {
  return precision.dtype == c10::kHalf || precision.reduce_dtype == c10::kHalf;
}

}  // namespace fsdp::trainer
