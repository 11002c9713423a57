#include "comm/backend_table.h"
#include "config/config_keys.h"

namespace fsdp::trainer {
namespace {

std::string meanings_of_backends() {
  std::string text;
  for (const comm::Backend& backend : comm::kBackends) {
    text.append("`").append(backend.name).append("`: ").append(backend.meaning).append(" ");
  }
  return text;
}

std::vector<std::string> names_of_backends() {
  std::vector<std::string> names = {"auto"};
  for (const comm::Backend& backend : comm::kBackends) names.emplace_back(backend.name);
  return names;
}

}  // namespace

std::vector<ConfigKey> device_keys() {
  const std::string section = "Devices and communication";
  return {
      {.section = section,
       .name = "device",
       .member = {&Config::communication, &CommunicationConfig::device},
       .meaning = "Device that ranks compute on. `cpu`: the CPU. `cuda`: the GPU whose index is the rank's local rank "
                  "(LOCAL_RANK); each rank needs a GPU of its own. `auto`: `cuda` if the host has enough GPUs for its "
                  "ranks, else `cpu`; the log says which."},
      {.section = section,
       .name = "comm_backend",
       .member = {&Config::communication, &CommunicationConfig::backend},
       .meaning = "How ranks communicate. " + meanings_of_backends() +
                  "`auto` on GPUs: `nccl` if this program was built with NCCL, else `gloo`. `auto` on CPUs: `shm` if "
                  "all ranks can reach each other's memory; else shared memory within each host and `gloo` between "
                  "hosts, if there are several hosts with the same number of ranks, at least two on each; else "
                  "`gloo`. The log says which, and why.",
       .choices = names_of_backends()},
  };
}

std::vector<ConfigKey> sharding_keys() {
  const std::string section = "Sharding";
  return {
      {.section = section,
       .name = "sharding_strategy",
       .member = {&Config::sharding, &ShardingConfig::strategy},
       .meaning = "`full_shard`: parameters, gradients and optimizer state are sharded (ZeRO-3). `shard_grad_op`: the "
                  "same, but parameters stay gathered from forward to backward (ZeRO-2). `no_shard`: every rank "
                  "holds everything (data parallelism). `hybrid_shard`, `hybrid_shard_zero2`: full_shard or "
                  "shard_grad_op inside groups of `sharding_factor` ranks, each of which holds a copy of the model."},
      {.section = section,
       .name = "sharding_factor",
       .member = {&Config::sharding, &ShardingConfig::factor},
       .meaning = "Ranks that share one copy of the parameters. With a hybrid strategy: a divisor of the number of "
                  "ranks, or null for the ranks of each host. Otherwise: null, or the number of all ranks (with "
                  "no_shard: 1).",
       .range = kAtLeastOne},
      {.section = section,
       .name = "reshard_after_forward",
       .member = {&Config::sharding, &ShardingConfig::reshard_after_forward},
       .meaning = "Whether units reshard their parameters after forward and gather them again for backward. N: they "
                  "are resharded over groups of N ranks, within which backward gathers; N must divide the number of "
                  "ranks that share one copy, and be smaller than it. null: as the strategy says. true and N need "
                  "full_shard or hybrid_shard.",
       .range = Range{.lower = 2}},
      {.section = section,
       .name = "wrap_policy",
       .member = {&Config::sharding, &ShardingConfig::wrap_policy},
       .meaning = "Which modules become units of their own. `transformer`: the model's blocks, `wrap_classes`, and "
                  "large embeddings and heads. `size`: modules with at least `size_min_params` parameters. "
                  "`auto_units`: no modules; the order in which the first forward uses parameters is cut into units of "
                  "about equal size. `none`: the whole model is one unit."},
      {.section = section,
       .name = "wrap_classes",
       .member = {&Config::sharding, &ShardingConfig::wrap_classes},
       .meaning = "Further module classes that become units with wrap_policy `transformer`, such as those of "
                  "embeddings or heads."},
      {.section = section,
       .name = "size_min_params",
       .member = {&Config::sharding, &ShardingConfig::size_min_params},
       .meaning = "Smallest number of parameters of a unit with wrap_policy `size`.",
       .range = kAtLeastOne},
      {.section = section,
       .name = "auto_units_target_bytes",
       .member = {&Config::sharding, &ShardingConfig::auto_units_target_bytes},
       .meaning =
           "With wrap_policy `auto_units`: target size of a unit's gathered parameters, in bytes. null: 1/32 of the "
           "model's parameters, but at most 33 million elements.",
       .range = kAtLeastOne},
      {.section = section,
       .name = "auto_units_memory_bound",
       .member = {&Config::sharding, &ShardingConfig::auto_units_memory_bound},
       .meaning =
           "With wrap_policy `auto_units`: upper bound, in bytes, on the memory that gathered parameters and gradient "
           "buffers take together on a rank at any time; units are made smaller where necessary. null: no bound.",
       .range = kAtLeastOne},
      {.section = section,
       .name = "use_orig_params",
       .member = {&Config::sharding, &ShardingConfig::use_orig_params},
       .meaning = "true: the optimizer works on one tensor for each original parameter. false: on one flat tensor "
                  "for each unit. The result is the same."},
      {.section = section,
       .name = "sync_module_states",
       .member = {&Config::sharding, &ShardingConfig::sync_module_states},
       .meaning =
           "true: rank 0 reads the weights, or initializes those of `model`, and sends them to the other ranks, one "
           "unit at a time. false: each rank reads its part, or initializes all weights and keeps its part. In "
           "either case, all ranks read the headers of the files in `model_path`, and the model's buffers."},
      {.section = section,
       .name = "cpu_offload",
       .member = {&Config::sharding, &ShardingConfig::cpu_offload},
       .meaning = "Whether shards, their gradients and the optimizer's state are kept in host memory (pinned, for "
                  "GPUs), and the optimizer step runs there. On the CPU they are there already: true changes "
                  "nothing, and the log says so."},
      {.section = section,
       .name = "offload_path",
       .member = {&Config::sharding, &ShardingConfig::offload_path},
       .meaning = "A folder, preferably on a local disk: shards and optimizer state are kept in files there instead "
                  "of in memory, and are read and written as units are used. The files have no names and disappear "
                  "when the run ends. null: no files."},
      {.section = section,
       .name = "backward_prefetch",
       .member = {&Config::sharding, &ShardingConfig::backward_prefetch},
       .meaning = "When to issue the gather of the unit that backward is expected to need next. `backward_pre`: "
                  "before the current unit's gradients are computed. `backward_post`: after they are computed and the "
                  "current unit is released. `none`: when the unit is needed."},
      {.section = section,
       .name = "forward_prefetch",
       .member = {&Config::sharding, &ShardingConfig::forward_prefetch},
       .meaning = "Whether the gather of the unit that forward is expected to need next is issued before the current "
                  "unit's forward."},
      {.section = section,
       .name = "limit_all_gathers",
       .member = {&Config::sharding, &ShardingConfig::limit_all_gathers},
       .meaning = "Whether at most `max_gathered_units` units are gathered or being gathered at a time. false: gathers "
                  "are issued as far ahead as the order of units is known."},
      {.section = section,
       .name = "max_gathered_units",
       .member = {&Config::sharding, &ShardingConfig::max_gathered_units},
       .meaning = "With `limit_all_gathers`: how many units may be gathered or being gathered at a time. The unit in "
                  "use counts; the root and units that stay gathered after forward do not.",
       .range = kAtLeastOne},
      {.section = section,
       .name = "one_communicator",
       .member = {&Config::sharding, &ShardingConfig::one_communicator},
       .meaning = "Whether gathers and reductions share one communicator, in which each operation waits for those "
                  "issued before it, instead of having connections of their own."},
      {.section = section,
       .name = "keep_memory",
       .member = {&Config::sharding, &ShardingConfig::keep_memory},
       .meaning =
           "Whether the memory of gradients and gathered parameters stays allocated from step to step. false: it is "
           "freed as soon as it is unused. This lowers the peak, because gradients are allocated while activations "
           "are freed, and costs a few allocations for each unit."},
      {.section = section,
       .name = "check_memory",
       .member = {&Config::sharding, &ShardingConfig::check_memory},
       .meaning =
           "Whether training is refused before it begins if the model's parameters, gradients and optimizer state need "
           "more memory than is left on this host, or in the control group (cgroup) of the ranks. false: training is "
           "tried anyway."},
      {.section = section,
       .name = "activation_checkpointing",
       .member = {&Config::model, &ModelConfig::activation_checkpointing},
       .meaning = "Whether blocks recompute their activations in backward instead of keeping them."},
      {.section = section,
       .name = "activation_checkpointing_every",
       .member = {&Config::model, &ModelConfig::activation_checkpointing_every},
       .meaning =
           "With `activation_checkpointing`: every k-th block is recomputed (blocks 0, k, 2k, …); the others keep "
           "their activations.",
       .range = kAtLeastOne},
      {.section = section,
       .name = "activation_checkpointing_save_ops",
       .member = {&Config::model, &ModelConfig::activation_checkpointing_save_ops},
       .meaning = "With `activation_checkpointing`: operators whose results are kept instead of recomputed, as the "
                  "dispatcher names them below autograd, such as `aten::mm`."},
  };
}

}  // namespace fsdp::trainer
