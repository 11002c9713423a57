#include "config/config_checks.h"

#include <c10/util/StringUtil.h>

#include <algorithm>

#include "comm/backend_table.h"
#include "config/byte_count.h"
#include "config/config_names.h"
#include "config/config_schema.h"
#include "config/errors.h"
#include "config/parallel_degrees.h"
#include "config/refusals.h"
#include "formats/common/json_text.h"
#include "optimizers/registry.h"

namespace fsdp::trainer {

namespace {

[[noreturn]] void contradiction(const std::string& what) { throw ConfigError(what); }

void check_model(const ModelConfig& model) {
  if (!model.path && !model.definition) {
    contradiction(
        "key \"model_path\" is missing: give the folder of a pretrained model, or the key \"model\" for one "
        "that is trained from scratch");
  }
  if (!model.path || !model.definition) return;
  contradiction("key \"model_path\" is \"" + *model.path + "\", and key \"model\" is " +
                formats::json_text(*model.definition) + "; only one of them may be given");
}

// Refuses keys of other optimizers unless they have their defaults.
void check_optimizer(const Config& c) {
  const auto& own = optimizer_kind(c.optimizer).keys;
  for (const OptimizerKind& other : optimizer_kinds()) {
    for (const char* name : other.keys) {
      if (std::find(own.begin(), own.end(), std::string(name)) != own.end()) continue;
      const ConfigKey& key = *find_config_key(name);
      const nlohmann::json value = value_of(key, c);
      if (value == value_of(key, Config{})) continue;
      contradiction(c10::str("key \"", name, "\" is ", formats::json_text(value), ", but \"optimizer\" is \"",
                             c.optimizer.name, "\"; it needs \"", other.name, "\""));
    }
  }
}

void check_recomputation(const ModelConfig& model) {
  if (model.activation_checkpointing) return;
  const std::string needed = ", but \"activation_checkpointing\" is false; it must be true";
  if (model.activation_checkpointing_every != ModelConfig{}.activation_checkpointing_every) {
    contradiction(c10::str("key \"activation_checkpointing_every\" is ", model.activation_checkpointing_every, needed));
  }
  if (!model.activation_checkpointing_save_ops.empty()) {
    contradiction("key \"activation_checkpointing_save_ops\" is not empty" + needed);
  }
}

void check_loss_scaling(const PrecisionConfig& precision) {
  if (uses_fp16(precision)) return;
  const std::string needed = c10::str(", but neither \"dtype\" (\"", config_name(precision.dtype),
                                      "\") nor \"mixed_precision_reduce_dtype\" is \"fp16\"");
  if (precision.fp16_init_scale != PrecisionConfig{}.fp16_init_scale) {
    contradiction(c10::str("key \"fp16_init_scale\" is ", precision.fp16_init_scale, needed));
  }
  if (precision.fp16_growth_interval != PrecisionConfig{}.fp16_growth_interval) {
    contradiction(c10::str("key \"fp16_growth_interval\" is ", precision.fp16_growth_interval, needed));
  }
}

void check_accumulation(const Config& c) {
  if (c.steps.all_reduce_each_batch) return;
  if (!is_hybrid(c.sharding.strategy)) {
    contradiction("key \"all_reduce_each_batch\" is false, but \"sharding_strategy\" is \"" +
                  config_name(c.sharding.strategy) + "\"; it needs hybrid_shard or hybrid_shard_zero2");
  }
  if (!c.steps.sync_each_batch) {
    contradiction(
        "key \"all_reduce_each_batch\" is false, and so is \"sync_each_batch\", which already leaves all "
        "communication to the last pass; only one of them may be false");
  }
}

void check_resharding(const Config& c) {
  if (reshards_after_forward(c.sharding.strategy) || !c.sharding.reshard_after_forward ||
      *c.sharding.reshard_after_forward == BoolOrInteger(false))
    return;
  const std::string value = formats::json_text(value_of(*find_config_key("reshard_after_forward"), c));
  contradiction("key \"reshard_after_forward\" is " + value + ", but \"sharding_strategy\" is \"" +
                config_name(c.sharding.strategy) +
                "\", which keeps parameters gathered; accepted: false, null, or the strategy full_shard or "
                "hybrid_shard");
}

void check_trace(const TraceConfig& trace, int64_t max_steps) {
  if (trace.path) {
    if (trace.first_step <= max_steps) return;
    contradiction(c10::str("key \"trace_first_step\" is ", trace.first_step, ", but \"max_steps\" is ", max_steps,
                           "; no step would be traced"));
  }
  const std::string needed = ", but \"trace_path\" is null; name a file";
  if (trace.first_step != TraceConfig{}.first_step) {
    contradiction(c10::str("key \"trace_first_step\" is ", trace.first_step, needed));
  }
  if (trace.steps != TraceConfig{}.steps) contradiction(c10::str("key \"trace_steps\" is ", trace.steps, needed));
}

void check_saving(const Config& c) {
  if (c.checkpoints.async_save && c.sharding.offload_path) {
    contradiction(
        "key \"async_save\" is true, but \"offload_path\" is set: an asynchronous save would copy the offloaded "
        "files back to memory; only one of the two keys may be set");
  }
  if (c.output.overwrite_output_dir && c.checkpoints.resume_from_checkpoint == "latest") {
    contradiction(
        "key \"overwrite_output_dir\" is true, but \"resume_from_checkpoint\" is \"latest\", which resumes from a "
        "checkpoint "
        "in output_dir; only one of the two keys may be set");
  }
  if (c.checkpoints.save_steps) return;
  const std::string needed = ", but \"save_steps\" is null; give a number of steps";
  if (c.checkpoints.save_total_limit) {
    contradiction(c10::str("key \"save_total_limit\" is ", *c.checkpoints.save_total_limit, needed));
  }
  if (c.checkpoints.async_save) contradiction("key \"async_save\" is true" + needed);
}

void check_max_shard_size(const OutputConfig& output) {
  if (!parse_byte_count(output.max_shard_size)) {
    contradiction("key \"max_shard_size\" is \"" + output.max_shard_size + "\"; accepted: " + kByteCounts);
  }
  if (output.save_final || output.max_shard_size == OutputConfig{}.max_shard_size) return;
  contradiction("key \"max_shard_size\" is \"" + output.max_shard_size +
                "\", but \"save_final\" is false: no model is written at the end");
}

void check_sampling(const DivergenceConfig& divergence) {
  if (divergence.collective_check == CollectiveCheckLevel::kSampled) return;
  const std::string needed =
      ", but \"collective_check\" is \"" + config_name(divergence.collective_check) + "\"; it needs \"sampled\"";
  if (divergence.collective_check_first_steps != DivergenceConfig{}.collective_check_first_steps) {
    contradiction(
        c10::str("key \"collective_check_first_steps\" is ", divergence.collective_check_first_steps, needed));
  }
  if (divergence.collective_check_every != DivergenceConfig{}.collective_check_every) {
    contradiction(c10::str("key \"collective_check_every\" is ", divergence.collective_check_every, needed));
  }
}

void check_devices(const CommunicationConfig& communication) {
  const comm::Backend* backend = comm::find_backend(communication.backend);  // null: auto
  const bool on_gpus = communication.device == DeviceChoice::kCuda;
  if (communication.device == DeviceChoice::kAuto || !backend || backend->serves(on_gpus)) return;
  contradiction(c10::str("key \"comm_backend\" is \"", backend->name, "\", but \"device\" is \"",
                         config_name(communication.device), "\"; ", backend->words,
                         on_gpus ? " needs ranks on CPUs" : " needs GPUs", ": accepted are ",
                         join_or(comm::backends_for(on_gpus)), ", or the device ", on_gpus ? "cpu" : "cuda"));
}

void check_wrapping(const ShardingConfig& sharding) {
  const std::string policy = ", but \"wrap_policy\" is \"" + config_name(sharding.wrap_policy) + "\"; ";
  if (!sharding.wrap_classes.empty() && sharding.wrap_policy != UnitsBy::kTransformer) {
    contradiction("key \"wrap_classes\" is not empty" + policy + "wrap_classes needs \"transformer\"");
  }
  if (sharding.size_min_params != ShardingConfig{}.size_min_params && sharding.wrap_policy != UnitsBy::kSize) {
    contradiction(
        c10::str("key \"size_min_params\" is ", sharding.size_min_params, policy, "size_min_params needs \"size\""));
  }
  const bool has_bytes = sharding.auto_units_target_bytes || sharding.auto_units_memory_bound;
  if (has_bytes && sharding.wrap_policy != UnitsBy::kAutoUnits) {
    const char* key = sharding.auto_units_target_bytes ? "auto_units_target_bytes" : "auto_units_memory_bound";
    contradiction(c10::str("key \"", key, "\" is set", policy, key, " needs \"auto_units\""));
  }
  if (sharding.wrap_policy == UnitsBy::kAutoUnits && !sharding.use_orig_params) {
    contradiction(
        "key \"use_orig_params\" is false, but \"wrap_policy\" is \"auto_units\"; it must be true, as "
        "flat parameters would change when units are made");
  }
}

void check_gathers(const ShardingConfig& sharding) {
  if (sharding.max_gathered_units == ShardingConfig{}.max_gathered_units || sharding.limit_all_gathers) return;
  contradiction(c10::str("key \"max_gathered_units\" is ", sharding.max_gathered_units,
                         ", but \"limit_all_gathers\" is false; it must be true"));
}

// No rank knows the shard groups of hosts by itself, but their size divides the number of ranks, so a number that
// divides their size must divide the number of ranks, too.
void check_reshard_group(const ShardingConfig& sharding, const ParallelDegrees& degrees) {
  if (!sharding.reshard_after_forward) return;
  const auto* group = std::get_if<int64_t>(&*sharding.reshard_after_forward);
  const int64_t shard_group = degrees.shard_group.value_or(degrees.data);
  if (!group || (*group < shard_group && shard_group % *group == 0)) return;
  const std::string smaller = divisors(shard_group, 2, shard_group - 1);
  throw not_fitting(
      "reshard_after_forward", *group, sharding, degrees.data,
      c10::str("true, false, null", smaller.empty() ? "" : ", " + smaller, "; an integer must divide the ", shard_group,
               " rank(s) that share one copy, and be smaller"));
}

// Refuses what needs whole models on the ranks that shard. `key`: it divides the model.
void check_divided(const Config& c, const char* key, int64_t degree) {
  const std::string divided = c10::str(", but \"", key, "\" is ", degree, "; ");
  if (c.sharding.wrap_policy == UnitsBy::kAutoUnits) {
    contradiction("key \"wrap_policy\" is \"auto_units\"" + divided +
                  "accepted: " + join_or({"transformer", "size", "none"}));
  }
  const bool knows_group = c.sharding.factor || c.parallelism.shard_degree || c.parallelism.replicate_degree;
  if (is_hybrid(c.sharding.strategy) && !knows_group) {
    contradiction("key \"sharding_strategy\" is \"" + config_name(c.sharding.strategy) + "\"" + divided +
                  "give \"data_parallel_replicate_degree\" or \"data_parallel_shard_degree\"");
  }
}

// Refuses keys of pipelines without a pipeline, and what pipelines do not have.
void check_pipeline(const Config& c) {
  const int64_t degree = c.parallelism.pipeline_degree;
  if (degree == 1) {
    for (const char* name : {"pipeline_parallel_schedule", "pipeline_parallel_layers_per_stage",
                             "pipeline_parallel_first_stage_less_layers", "pipeline_parallel_last_stage_less_layers"}) {
      const ConfigKey& key = *find_config_key(name);
      const nlohmann::json value = value_of(key, c);
      if (value == value_of(key, Config{})) continue;
      contradiction(c10::str("key \"", name, "\" is ", formats::json_text(value),
                             ", but \"pipeline_parallel_degree\" is 1; it needs a larger one"));
    }
    return;
  }
  check_divided(c, "pipeline_parallel_degree", degree);
}

// Refuses what does not go together with split weights.
void check_tensor_parallelism(const Config& c) {
  const int64_t degree = c.parallelism.tensor_degree;
  if (degree == 1) return;
  check_divided(c, "tensor_parallel_degree", degree);
  if (c.model.fused_loss) {
    contradiction(
        c10::str("key \"fused_loss\" is true, but \"tensor_parallel_degree\" is ", degree, "; accepted: false"));
  }
  const int64_t length = c.data.max_seq_length;
  if (c.parallelism.splits_positions() && length % degree != 0) {
    contradiction(c10::str("key \"max_seq_length\" is ", length, ", which the ", degree,
                           " ranks of \"tensor_parallel_degree\" cannot divide evenly; give a multiple of ", degree,
                           ", or set \"enable_sequence_parallel\" to false"));
  }
}

}  // namespace

void check_combinations(const Config& c) {
  check_model(c.model);
  if (c.output.do_eval && !c.data.eval_dataset) {
    contradiction("key \"do_eval\" is true, but \"eval_dataset\" is null; name a file, or `dummy`");
  }
  check_wrapping(c.sharding);
  check_gathers(c.sharding);
  check_devices(c.communication);
  check_sampling(c.divergence);
  check_trace(c.trace, c.steps.max_steps);
  check_max_shard_size(c.output);
  check_saving(c);
  check_optimizer(c);
  check_recomputation(c.model);
  check_loss_scaling(c.precision);
  check_accumulation(c);
  check_resharding(c);
  check_pipeline(c);
  check_tensor_parallelism(c);
}

void check_for_world_size(const Config& config, int64_t world_size) {
  check_reshard_group(config.sharding, parallel_degrees(config, world_size));
}

}  // namespace fsdp::trainer
