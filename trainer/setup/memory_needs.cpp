#include "setup/memory_needs.h"

#include <c10/util/StringUtil.h>
#include <sys/sysinfo.h>

#include <algorithm>
#include <cstdio>

#include "config/errors.h"
#include "config/parallel_degrees.h"
#include "optimizers/registry.h"
#include "setup/distinct_parameters.h"

namespace fsdp::trainer {

namespace {

struct Sizes {
  int64_t parameters = 0;
  int64_t largest = 0;
};

// Counts in elements; a parameter that several modules share counts once.
Sizes sizes_of(const models::PretrainedModel& model) {
  Sizes sizes;
  for (const at::Tensor& parameter : distinct_parameters(model)) {
    sizes.parameters += parameter.numel();
    sizes.largest = std::max(sizes.largest, parameter.numel());
  }
  return sizes;
}

int64_t bytes_of(c10::ScalarType dtype) { return static_cast<int64_t>(c10::elementSize(dtype)); }

// Returns how many copies of the whole model all ranks of one host hold together, with stages and parts of equal size.
double copies_on_host(const Config& config, const HostRanks& ranks) {
  const ParallelDegrees degrees = parallel_degrees(config, ranks.world);
  const auto local = static_cast<double>(ranks.local), stages = static_cast<double>(degrees.pipeline * degrees.tensor);
  if (config.sharding.strategy == ShardingStrategy::kNoShard) return local / stages;
  if (!is_hybrid(config.sharding.strategy)) return local / static_cast<double>(ranks.world);
  return degrees.shard_group ? local / static_cast<double>(*degrees.shard_group) / stages : 1.0;
}

bool holds_state_on_host(const ShardingConfig& sharding, const HostRanks& ranks) {
  return ranks.device.is_cpu() || sharding.cpu_offload;
}

std::string gibibytes(int64_t bytes) {
  char text[40];
  const double gibibytes = static_cast<double>(bytes) / (1 << 30);
  std::snprintf(text, sizeof(text), gibibytes < 100 ? "%.3g GiB" : "%.0f GiB", gibibytes);
  return text;
}

int64_t free_swap() {
  struct sysinfo info{};
  return sysinfo(&info) == 0 ? static_cast<int64_t>(info.freeswap) * info.mem_unit : 0;
}

const char* key_of_model(const ModelConfig& model) { return model.path ? "model_path" : "model"; }

std::string figures(const MemoryNeeds& needs, const OptimizerConfig& optimizer) {
  return c10::str("parameters ", gibibytes(needs.parameters), ", gradients ", gibibytes(needs.gradients), ", ",
                  optimizer_kind(optimizer).title, "'s state ", gibibytes(needs.optimizer_state),
                  needs.gathered > 0 ? ", the largest gathered parameter " + gibibytes(needs.gathered) : "");
}

// The permutation exists at the same time as the list of samples made from it.
int64_t order_bytes(const DataConfig& data, const Dataset& train, const HostRanks& ranks) {
  const auto bytes = static_cast<int64_t>(sizeof(int64_t)) * (data.shuffle ? 2 : 1) * ranks.local;
  return train.size() > INT64_MAX / bytes ? INT64_MAX : train.size() * bytes;
}

}  // namespace

MemoryNeeds memory_needs(const Config& config, const models::PretrainedModel& model, const HostRanks& ranks) {
  MemoryNeeds needs;
  if (!holds_state_on_host(config.sharding, ranks)) return needs;
  const Sizes sizes = sizes_of(model);
  const double elements = static_cast<double>(sizes.parameters) * copies_on_host(config, ranks);
  const auto held = [&](int64_t bytes) { return static_cast<int64_t>(elements * static_cast<double>(bytes)); };
  const int64_t master = bytes_of(config.precision.master_dtype);
  const c10::ScalarType reduce_dtype = config.precision.reduce_dtype.value_or(config.precision.dtype);
  needs.gradients = held(config.precision.keep_low_precision_grads ? std::min(master, bytes_of(reduce_dtype)) : master);
  if (!config.sharding.offload_path) {
    needs.parameters = held(master);
    needs.optimizer_state = held(optimizer_kind(config.optimizer).state_tensors(config.optimizer) * master);
  }
  const bool gathers_anew = ranks.device.is_cpu() && config.precision.dtype != config.precision.master_dtype;
  if (gathers_anew) needs.gathered = sizes.largest * bytes_of(config.precision.dtype);
  return needs;
}

void check_memory(const Config& config, const models::PretrainedModel& model, const Dataset& train,
                  const HostRanks& ranks, const comm::MemoryHeadroom& headroom) {
  if (!config.sharding.check_memory) return;
  const int64_t left = headroom.nbytes + std::min(free_swap(), INT64_MAX - headroom.nbytes);
  const std::string available =
      c10::str(gibibytes(left), " are left (", headroom.limit, left > headroom.nbytes ? ", with free swap space" : "",
               "). If this is wrong, set \"check_memory\" to false");
  const MemoryNeeds needs = memory_needs(config, model, ranks);
  if (needs.total() > left) {
    throw ConfigError(c10::str("key \"", key_of_model(config.model), "\": the model is too large for this host, where ",
                               ranks.local, " of ", ranks.world, " rank(s) need at least ", gibibytes(needs.total()),
                               " (", figures(needs, config.optimizer), "), but ", available,
                               "; otherwise use more hosts, a smaller model, another \"sharding_strategy\", bf16 as "
                               "\"master_dtype\", or \"offload_path\""));
  }
  const int64_t order = order_bytes(config.data, train, ranks);
  if (order <= left - needs.total()) return;
  throw ConfigError(c10::str("key \"dataset\": \"", config.data.dataset, "\" has ", train.size(),
                             " samples. Their order takes ", gibibytes(order), " on the ", ranks.local,
                             " rank(s) of this host, and the model ", gibibytes(needs.total()), ", but ", available,
                             "; otherwise use fewer samples"));
}

}  // namespace fsdp::trainer
