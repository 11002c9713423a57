#include "setup/sharding_options.h"

#include <c10/util/Exception.h>

#include <chrono>
#include <cmath>
#include <set>
#include <vector>

#include "config/errors.h"
#include "config/parallel_degrees.h"
#include "fsdp/wrap_policy.h"
#include "setup/transformer_policy.h"

namespace fsdp::trainer {

namespace {

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

WrapPolicy wrap_policy(const ShardingConfig& sharding, const models::PretrainedModel& model) {
  switch (sharding.wrap_policy) {
    case UnitsBy::kNone:
    case UnitsBy::kAutoUnits:
      return {};
    case UnitsBy::kSize:
      return size_policy(sharding.size_min_params);
    case UnitsBy::kTransformer:
      check_classes("wrap_classes", sharding.wrap_classes, model);
      return transformer_policy(model, sharding.wrap_classes);
  }
  TORCH_CHECK(false, "wrap_policy without a policy");
}

std::optional<ReshardAfterForward> reshard_after_forward(const std::optional<BoolOrInteger>& given) {
  if (!given) return std::nullopt;
  if (const auto* on = std::get_if<bool>(&*given)) return ReshardAfterForward(*on);
  return ReshardAfterForward(static_cast<int>(std::get<int64_t>(*given)));
}

void set_overlap(const ShardingConfig& sharding, Options& options) {
  options.backward_prefetch = sharding.backward_prefetch;
  options.forward_prefetch = sharding.forward_prefetch;
  options.limit_all_gathers = sharding.limit_all_gathers;
  options.max_gathered_units = sharding.max_gathered_units;
  options.one_communicator = sharding.one_communicator;
}

void set_debug(const DivergenceConfig& divergence, const std::string& output_dir, Options& options) {
  options.debug.collective_check = {.level = divergence.collective_check,
                                    .first_steps = divergence.collective_check_first_steps,
                                    .every = divergence.collective_check_every};
  if (divergence.watchdog_seconds) {
    options.debug.watchdog_warning =
        std::chrono::milliseconds(static_cast<int64_t>(std::ceil(*divergence.watchdog_seconds * 1000)));
  }
  if (divergence.collective_dump) options.debug.dump_folder = output_dir;
}

void set_precision(const PrecisionConfig& precision, const models::PretrainedModel& model, Options& options) {
  options.param_dtype = precision.dtype;
  options.reduce_dtype = precision.reduce_dtype.value_or(precision.dtype);
  options.buffer_dtype = precision.buffer_dtype;
  options.keep_low_precision_grads = precision.keep_low_precision_grads;
  check_classes("full_precision_classes", precision.full_precision_classes, model);
  options.full_precision_classes = precision.full_precision_classes;
}

}  // namespace

Options sharding_options(const Config& config, const models::PretrainedModel& model,
                         std::shared_ptr<Communicator> communicator, c10::Device device) {
  const ShardingConfig& sharding = config.sharding;
  Options options;
  if (communicator && is_hybrid(sharding.strategy)) {
    const auto group = parallel_degrees(config, communicator->size()).shard_group;
    if (group) options.mesh = make_mesh(communicator, static_cast<int>(*group));
  }
  options.communicator = std::move(communicator);
  options.use_orig_params = sharding.use_orig_params;
  options.keep_memory = sharding.keep_memory;
  options.device = device;
  options.cpu_offload = sharding.cpu_offload;
  options.offload_path = sharding.offload_path;
  options.sharding_strategy = sharding.strategy;
  options.reshard_after_forward = reshard_after_forward(sharding.reshard_after_forward);
  set_overlap(sharding, options);
  set_debug(config.divergence, config.output.output_dir, options);
  set_precision(config.precision, model, options);
  options.auto_wrap_policy = wrap_policy(sharding, model);
  if (sharding.wrap_policy == UnitsBy::kAutoUnits) {
    options.auto_units =
        AutoUnits{.target_bytes = sharding.auto_units_target_bytes, .memory_bound = sharding.auto_units_memory_bound};
  }
  return options;
}

}  // namespace fsdp::trainer
