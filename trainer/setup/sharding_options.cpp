#include "setup/sharding_options.h"

#include <c10/util/Exception.h>

#include <chrono>
#include <cmath>
#include <set>
#include <vector>

#include "config/errors.h"
#include "fsdp/wrap_policy.h"
#include "setup/transformer_policy.h"

namespace fsdp::trainer {

namespace {

ShardingStrategy sharding_strategy(const std::string& name) {
  if (name == "full_shard") return ShardingStrategy::kFullShard;
  if (name == "shard_grad_op") return ShardingStrategy::kShardGradOp;
  if (name == "no_shard") return ShardingStrategy::kNoShard;
  if (name == "hybrid_shard") return ShardingStrategy::kHybridShard;
  if (name == "hybrid_shard_zero2") return ShardingStrategy::kHybridShardZero2;
  TORCH_CHECK(false, "sharding_strategy: \"", name, "\" is unknown");
}

void check_classes(const std::string& key, const std::vector<std::string>& names,
                   const models::PretrainedModel& model) {
  std::set<std::string> known;
  for (const auto& module : model.modules()) known.insert(module_class_name(*module));
  for (const std::string& name : names) {
    if (known.count(name)) continue;
    std::string list;
    for (const std::string& k : known) list += (list.empty() ? "" : ", ") + k;
    throw ConfigError("key \"" + key + "\": the model has no module of class \"" + name + "\"; it has: " + list);
  }
}

WrapPolicy wrap_policy(const Config& config, const models::PretrainedModel& model) {
  if (config.wrap_policy == "none" || config.wrap_policy == "auto_units") return {};
  if (config.wrap_policy == "size") return size_policy(config.size_min_params);
  TORCH_CHECK(config.wrap_policy == "transformer", "wrap_policy: \"", config.wrap_policy, "\" is unknown");
  check_classes("wrap_classes", config.wrap_classes, model);
  return transformer_policy(model, config.wrap_classes);
}

std::optional<ReshardAfterForward> reshard_after_forward(const Config& config) {
  if (!config.reshard_after_forward) return std::nullopt;
  if (const auto* on = std::get_if<bool>(&*config.reshard_after_forward)) return ReshardAfterForward(*on);
  return ReshardAfterForward(static_cast<int>(std::get<int64_t>(*config.reshard_after_forward)));
}

BackwardPrefetch backward_prefetch(const std::string& name) {
  if (name == "none") return BackwardPrefetch::kNone;
  if (name == "backward_pre") return BackwardPrefetch::kPre;
  if (name == "backward_post") return BackwardPrefetch::kPost;
  TORCH_CHECK(false, "backward_prefetch: \"", name, "\" is unknown");
}

void set_overlap(const Config& config, Options& options) {
  options.backward_prefetch = backward_prefetch(config.backward_prefetch);
  options.forward_prefetch = config.forward_prefetch;
  options.limit_all_gathers = config.limit_all_gathers;
  options.max_gathered_units = config.max_gathered_units;
  options.one_communicator = config.one_communicator;
}

CollectiveCheckLevel check_level(const std::string& name) {
  if (name == "off") return CollectiveCheckLevel::kOff;
  if (name == "sampled") return CollectiveCheckLevel::kSampled;
  if (name == "always") return CollectiveCheckLevel::kAlways;
  TORCH_CHECK(false, "collective_check: \"", name, "\" is unknown");
}

void set_debug(const Config& config, Options& options) {
  options.debug.collective_check = {.level = check_level(config.collective_check),
                                    .first_steps = config.collective_check_first_steps,
                                    .every = config.collective_check_every};
  if (config.watchdog_seconds) {
    options.debug.watchdog_warning =
        std::chrono::milliseconds(static_cast<int64_t>(std::ceil(*config.watchdog_seconds * 1000)));
  }
  if (config.collective_dump) options.debug.dump_folder = config.output_dir;
}

void set_precision(const Config& config, const models::PretrainedModel& model, Options& options) {
  options.param_dtype = scalar_type(config.dtype);
  options.reduce_dtype = scalar_type(config.mixed_precision_reduce_dtype.value_or(config.dtype));
  if (config.mixed_precision_buffer_dtype) options.buffer_dtype = scalar_type(*config.mixed_precision_buffer_dtype);
  options.keep_low_precision_grads = config.keep_low_precision_grads;
  check_classes("full_precision_classes", config.full_precision_classes, model);
  options.full_precision_classes = config.full_precision_classes;
}

}  // namespace

c10::ScalarType scalar_type(const std::string& dtype) {
  if (dtype == "fp32") return c10::kFloat;
  if (dtype == "bf16") return c10::kBFloat16;
  if (dtype == "fp16") return c10::kHalf;
  TORCH_CHECK(false, "dtype: \"", dtype, "\" is unknown");
}

Options sharding_options(const Config& config, const models::PretrainedModel& model,
                         std::shared_ptr<Communicator> communicator, c10::Device device) {
  Options options;
  if (communicator && config.sharding_factor && is_hybrid_strategy(config)) {
    options.mesh = make_mesh(communicator, static_cast<int>(*config.sharding_factor));
  }
  options.communicator = std::move(communicator);
  options.use_orig_params = config.use_orig_params;
  options.keep_memory = config.keep_memory;
  options.device = device;
  options.cpu_offload = config.cpu_offload;
  options.offload_path = config.offload_path;
  options.sharding_strategy = sharding_strategy(config.sharding_strategy);
  options.reshard_after_forward = reshard_after_forward(config);
  set_overlap(config, options);
  set_debug(config, options);
  set_precision(config, model, options);
  options.auto_wrap_policy = wrap_policy(config, model);
  if (config.wrap_policy == "auto_units") {
    options.auto_units =
        AutoUnits{.target_bytes = config.auto_units_target_bytes, .memory_bound = config.auto_units_memory_bound};
  }
  return options;
}

}  // namespace fsdp::trainer
