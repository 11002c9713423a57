#include "config/config_checks.h"

#include <c10/util/StringUtil.h>

#include <algorithm>

#include "comm/backends.h"
#include "config/byte_count.h"
#include "config/config_schema.h"
#include "config/errors.h"
#include "formats/common/json_text.h"
#include "optimizers/registry.h"

namespace fsdp::trainer {

namespace {

[[noreturn]] void contradiction(const std::string& what) { throw ConfigError(what); }

void check_model(const Config& c) {
  if (!c.model_path && !c.model) {
    contradiction(
        "key \"model_path\" is missing: give the folder of a pretrained model, or the key \"model\" for one "
        "that is trained from scratch");
  }
  if (!c.model_path || !c.model) return;
  contradiction("key \"model_path\" is \"" + *c.model_path + "\", and key \"model\" is " +
                formats::json_text(*c.model) + "; only one of them may be given");
}

// Refuses keys of other optimizers unless they have their defaults.
void check_optimizer(const Config& c) {
  const auto& own = optimizer_kind(c).keys;
  for (const OptimizerKind& other : optimizer_kinds()) {
    for (const char* name : other.keys) {
      if (std::find(own.begin(), own.end(), std::string(name)) != own.end()) continue;
      const ConfigKey& key = *find_config_key(name);
      const nlohmann::json value = value_of(key, c);
      if (value == value_of(key, Config{})) continue;
      contradiction(c10::str("key \"", name, "\" is ", formats::json_text(value), ", but \"optimizer\" is \"",
                             c.optimizer, "\"; it needs \"", other.name, "\""));
    }
  }
}

void check_recomputation(const Config& c) {
  if (c.activation_checkpointing) return;
  const std::string needed = ", but \"activation_checkpointing\" is false; it must be true";
  if (c.activation_checkpointing_every != Config{}.activation_checkpointing_every) {
    contradiction(c10::str("key \"activation_checkpointing_every\" is ", c.activation_checkpointing_every, needed));
  }
  if (!c.activation_checkpointing_save_ops.empty()) {
    contradiction("key \"activation_checkpointing_save_ops\" is not empty" + needed);
  }
}

void check_loss_scaling(const Config& c) {
  if (uses_fp16(c)) return;
  const std::string needed =
      c10::str(", but neither \"dtype\" (\"", c.dtype, "\") nor \"mixed_precision_reduce_dtype\" is \"fp16\"");
  if (c.fp16_init_scale != Config{}.fp16_init_scale) {
    contradiction(c10::str("key \"fp16_init_scale\" is ", c.fp16_init_scale, needed));
  }
  if (c.fp16_growth_interval != Config{}.fp16_growth_interval) {
    contradiction(c10::str("key \"fp16_growth_interval\" is ", c.fp16_growth_interval, needed));
  }
}

void check_accumulation(const Config& c) {
  if (c.all_reduce_each_batch) return;
  if (!is_hybrid_strategy(c)) {
    contradiction("key \"all_reduce_each_batch\" is false, but \"sharding_strategy\" is \"" + c.sharding_strategy +
                  "\"; it needs hybrid_shard or hybrid_shard_zero2");
  }
  if (!c.sync_each_batch) {
    contradiction(
        "key \"all_reduce_each_batch\" is false, and so is \"sync_each_batch\", which already leaves all "
        "communication to the last pass; only one of them may be false");
  }
}

void check_resharding(const Config& c) {
  const bool can = c.sharding_strategy == "full_shard" || c.sharding_strategy == "hybrid_shard";
  if (can || !c.reshard_after_forward || *c.reshard_after_forward == BoolOrInteger(false)) return;
  const std::string value = formats::json_text(value_of(*find_config_key("reshard_after_forward"), c));
  contradiction("key \"reshard_after_forward\" is " + value + ", but \"sharding_strategy\" is \"" +
                c.sharding_strategy +
                "\", which keeps parameters gathered; accepted: false, null, or the strategy full_shard or "
                "hybrid_shard");
}

void check_trace(const Config& c) {
  if (c.trace_path) {
    if (c.trace_first_step <= c.max_steps) return;
    contradiction(c10::str("key \"trace_first_step\" is ", c.trace_first_step, ", but \"max_steps\" is ", c.max_steps,
                           "; no step would be traced"));
  }
  const std::string needed = ", but \"trace_path\" is null; name a file";
  if (c.trace_first_step != Config{}.trace_first_step) {
    contradiction(c10::str("key \"trace_first_step\" is ", c.trace_first_step, needed));
  }
  if (c.trace_steps != Config{}.trace_steps) contradiction(c10::str("key \"trace_steps\" is ", c.trace_steps, needed));
}

void check_saving(const Config& c) {
  if (c.async_save && c.offload_path) {
    contradiction(
        "key \"async_save\" is true, but \"offload_path\" is set: an asynchronous save would copy the offloaded "
        "files back to memory; only one of the two keys may be set");
  }
  if (c.overwrite_output_dir && c.resume_from_checkpoint == "latest") {
    contradiction(
        "key \"overwrite_output_dir\" is true, but \"resume_from_checkpoint\" is \"latest\", which resumes from a "
        "checkpoint "
        "in output_dir; only one of the two keys may be set");
  }
  if (c.save_steps) return;
  const std::string needed = ", but \"save_steps\" is null; give a number of steps";
  if (c.save_total_limit) contradiction(c10::str("key \"save_total_limit\" is ", *c.save_total_limit, needed));
  if (c.async_save) contradiction("key \"async_save\" is true" + needed);
}

void check_max_shard_size(const Config& c) {
  if (!parse_byte_count(c.max_shard_size)) {
    contradiction("key \"max_shard_size\" is \"" + c.max_shard_size + "\"; accepted: " + kByteCounts);
  }
  if (c.save_final || c.max_shard_size == Config{}.max_shard_size) return;
  contradiction("key \"max_shard_size\" is \"" + c.max_shard_size +
                "\", but \"save_final\" is false: no model is written at the end");
}

void check_sampling(const Config& c) {
  if (c.collective_check == "sampled") return;
  const std::string needed = ", but \"collective_check\" is \"" + c.collective_check + "\"; it needs \"sampled\"";
  if (c.collective_check_first_steps != Config{}.collective_check_first_steps) {
    contradiction(c10::str("key \"collective_check_first_steps\" is ", c.collective_check_first_steps, needed));
  }
  if (c.collective_check_every != Config{}.collective_check_every) {
    contradiction(c10::str("key \"collective_check_every\" is ", c.collective_check_every, needed));
  }
}

void check_devices(const Config& c) {
  const comm::Backend* backend = comm::find_backend(c.comm_backend);  // null: auto
  const bool on_gpus = c.device == "cuda";
  if (c.device == "auto" || !backend || backend->serves(on_gpus)) return;
  contradiction(c10::str("key \"comm_backend\" is \"", backend->name, "\", but \"device\" is \"", c.device, "\"; ",
                         backend->words, on_gpus ? " needs ranks on CPUs" : " needs GPUs", ": accepted are ",
                         join_or(comm::backends_for(on_gpus)), ", or the device ", on_gpus ? "cpu" : "cuda"));
}

[[noreturn]] void does_not_fit(const std::string& key, int64_t value, const Config& config, int64_t world_size,
                               const std::string& accepted) {
  throw ConfigError(c10::str("key \"", key, "\": ", value, " does not fit sharding_strategy \"",
                             config.sharding_strategy, "\" on ", world_size, " rank(s); accepted: ", accepted));
}

// Returns the divisors of `number` from `first` to `last`, as in "1, 2, 4".
std::string divisors(int64_t number, int64_t first, int64_t last) {
  std::string list;
  for (int64_t d = first; d <= last; ++d) {
    if (number % d == 0) list += c10::str(list.empty() ? "" : ", ", d);
  }
  return list;
}

void check_sharding_factor(const Config& config, int64_t world_size) {
  if (!config.sharding_factor) return;
  const int64_t factor = *config.sharding_factor;
  if (is_hybrid_strategy(config)) {
    if (world_size % factor == 0) return;
    does_not_fit("sharding_factor", factor, config, world_size, divisors(world_size, 1, world_size) + " or null");
  }
  const int64_t only = config.sharding_strategy == "no_shard" ? 1 : world_size;
  if (factor == only) return;
  does_not_fit("sharding_factor", factor, config, world_size,
               c10::str(only, " or null (others need hybrid_shard or hybrid_shard_zero2)"));
}

// No rank knows the shard groups of hosts by itself, but their size divides the number of ranks, so a number that
// divides their size must divide the number of ranks, too.
void check_reshard_group(const Config& config, int64_t world_size) {
  if (!config.reshard_after_forward) return;
  const auto* group = std::get_if<int64_t>(&*config.reshard_after_forward);
  const int64_t shard_group = config.sharding_factor.value_or(world_size);
  if (!group || (*group < shard_group && shard_group % *group == 0)) return;
  const std::string smaller = divisors(shard_group, 2, shard_group - 1);
  does_not_fit("reshard_after_forward", *group, config, world_size,
               c10::str("true, false, null", smaller.empty() ? "" : ", " + smaller, "; an integer must divide the ",
                        shard_group, " rank(s) that share one copy, and be smaller"));
}

}  // namespace

void check_combinations(const Config& c) {
  check_model(c);
  if (c.do_eval && !c.eval_dataset) {
    contradiction("key \"do_eval\" is true, but \"eval_dataset\" is null; name a file, or `dummy`");
  }
  const std::string policy = ", but \"wrap_policy\" is \"" + c.wrap_policy + "\"; ";
  if (!c.wrap_classes.empty() && c.wrap_policy != "transformer") {
    contradiction("key \"wrap_classes\" is not empty" + policy + "wrap_classes needs \"transformer\"");
  }
  if (c.size_min_params != Config{}.size_min_params && c.wrap_policy != "size") {
    contradiction(c10::str("key \"size_min_params\" is ", c.size_min_params, policy, "size_min_params needs \"size\""));
  }
  if ((c.auto_units_target_bytes || c.auto_units_memory_bound) && c.wrap_policy != "auto_units") {
    const char* key = c.auto_units_target_bytes ? "auto_units_target_bytes" : "auto_units_memory_bound";
    contradiction(c10::str("key \"", key, "\" is set", policy, key, " needs \"auto_units\""));
  }
  if (c.wrap_policy == "auto_units" && !c.use_orig_params) {
    contradiction(
        "key \"use_orig_params\" is false, but \"wrap_policy\" is \"auto_units\"; it must be true, as "
        "flat parameters would change when units are made");
  }
  if (c.max_gathered_units != Config{}.max_gathered_units && !c.limit_all_gathers) {
    contradiction(c10::str("key \"max_gathered_units\" is ", c.max_gathered_units,
                           ", but \"limit_all_gathers\" is false; it must be true"));
  }
  check_devices(c);
  check_sampling(c);
  check_trace(c);
  check_max_shard_size(c);
  check_saving(c);
  check_optimizer(c);
  check_recomputation(c);
  check_loss_scaling(c);
  check_accumulation(c);
  check_resharding(c);
}

void check_for_world_size(const Config& config, int64_t world_size) {
  check_sharding_factor(config, world_size);
  check_reshard_group(config, world_size);
}

}  // namespace fsdp::trainer
