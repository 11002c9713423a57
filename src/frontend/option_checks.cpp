#include "frontend/option_checks.h"

namespace fsdp::frontend {

void check_unit_options(const Options& options, const std::string& name) {
  ReshardAfterForward reshard = options.reshard_after_forward.value_or(false);
  TORCH_CHECK(!reshard.on() || reshards_after_forward(options.sharding_strategy), "fsdp: unit '", name,
              "': reshard_after_forward=true contradicts ", to_string(options.sharding_strategy),
              ", which keeps parameters gathered after forward; use FULL_SHARD or HYBRID_SHARD");
  for (auto dtype : {options.param_dtype, options.reduce_dtype, options.buffer_dtype}) {
    TORCH_CHECK(!dtype || c10::isFloatingType(*dtype), "fsdp: unit '", name, "': ", *dtype,
                ": param_dtype, reduce_dtype and buffer_dtype must be floating point");
  }
  TORCH_CHECK(options.max_gathered_units >= 1, "fsdp: unit '", name,
              "': max_gathered_units=", options.max_gathered_units, " must be at least 1: the unit in use");
}

void check_auto_units(const Options& options, const std::string& name) {
  if (!options.auto_units) return;
  TORCH_CHECK(!options.auto_wrap_policy, "fsdp: unit '", name,
              "': auto_units and auto_wrap_policy both define the units: set only one of them");
  TORCH_CHECK(options.use_orig_params, "fsdp: unit '", name,
              "': auto_units needs use_orig_params=true: flat leaves would change when units are made");
  auto check_positive = [&](const std::optional<int64_t>& bytes, const char* option) {
    TORCH_CHECK(!bytes || *bytes > 0, "fsdp: unit '", name, "': auto_units: ", option, "=", *bytes,
                " must be positive");
  };
  check_positive(options.auto_units->target_bytes, "target_bytes");
  check_positive(options.auto_units->memory_bound, "memory_bound");
}

void check_reshard_group(const Options& options, const ProcessMesh& mesh, const std::string& name) {
  if (!options.reshard_after_forward || !options.reshard_after_forward->group_size()) return;
  int group = *options.reshard_after_forward->group_size();
  int all = (is_hybrid(options.sharding_strategy) ? mesh.shard : mesh.world)->size();
  TORCH_CHECK(group > 1 && group < all && all % group == 0, "fsdp: unit '", name, "': reshard_after_forward=", group,
              " must divide the ", all,
              " ranks of the shard group, and be neither 1 nor all of them; use false to keep ",
              "parameters gathered, true to reshard them over the whole group");
}

void check_options_apply(const Options& options, const Survey& surveyed, const std::string& name) {
  if (!surveyed.unassigned.empty()) return;
  const engine::UnitOptions wanted = unit_options(options);
  bool known = wanted == engine::UnitOptions(), automatic = !options.auto_units;
  for (const engine::Engine* inner : surveyed.inner) {
    for (const auto& unit : inner->units()) {
      known = known || unit->options() == wanted;
      automatic = automatic || unit->automatic();
    }
  }
  const char* why = ", but inner calls have sharded all of its parameters: ";
  const char* remedy = ". Give them to the inner calls, and leave them at their defaults here";
  TORCH_CHECK(known, "fsdp: fully_shard was called on a module of class ", name, why,
              "options that differ from those of every inner unit (sharding_strategy, reshard_after_forward, "
              "param_dtype, reduce_dtype, keep_low_precision_grads or cast_forward_inputs) would apply to nothing",
              remedy);
  TORCH_CHECK(automatic, "fsdp: fully_shard was called on a module of class ", name, why,
              "auto_units would have nothing to cut", remedy);
}

engine::UnitOptions unit_options(const Options& options) {
  return {.strategy = options.sharding_strategy,
          .reshard_after_forward = options.reshard_after_forward,
          .param_dtype = options.param_dtype,
          .reduce_dtype = options.reduce_dtype,
          .keep_low_precision_grads = options.keep_low_precision_grads,
          .cast_forward_inputs = options.cast_forward_inputs};
}

engine::OverlapOptions overlap_options(const Options& options) {
  return {.backward_prefetch = options.backward_prefetch,
          .forward_prefetch = options.forward_prefetch,
          .max_gathered_units =
              options.limit_all_gathers ? static_cast<size_t>(options.max_gathered_units) : schedule::kNoLimit,
          .one_communicator = options.one_communicator,
          .high_priority_streams = options.high_priority_streams};
}

// Checks the options that must be the same in the whole tree.
void check_agrees(const engine::EngineOptions& outer, const engine::Engine& inner) {
  const engine::EngineOptions& other = inner.options();
  auto require = [&](bool equal, const char* option) {
    TORCH_CHECK(equal, "fsdp: option ", option, " must be the same for all units of a tree, but unit '",
                inner.units().front()->name(), "' was annotated with another value than the module above it");
  };
  require(outer.use_orig_params == other.use_orig_params, "use_orig_params");
  require(outer.exchange == inner.options().exchange, "tensor_parallel.group or tensor_parallel.sequence_dim");
  require(outer.shard_cut == other.shard_cut, "shard_cut");
  require(outer.keep_memory == other.keep_memory, "keep_memory");
  require(outer.memory.compute_device() == other.memory.compute_device(), "device");
  require(outer.memory.shard_device() == other.memory.shard_device(), "cpu_offload");
  require(outer.memory.files() == other.memory.files(), "offload_path");
  require(outer.overlap.backward_prefetch == other.overlap.backward_prefetch, "backward_prefetch");
  require(outer.overlap.forward_prefetch == other.overlap.forward_prefetch, "forward_prefetch");
  require(outer.overlap.max_gathered_units == other.overlap.max_gathered_units,
          "limit_all_gathers or max_gathered_units");
  require(outer.collective_check == other.collective_check, "debug.collective_check");
  require(outer.read_only_parameters == other.read_only_parameters, "debug.read_only_parameters");
  require(outer.overlap.one_communicator == other.overlap.one_communicator, "one_communicator");
  require(outer.overlap.high_priority_streams == other.overlap.high_priority_streams, "high_priority_streams");
}

}  // namespace fsdp::frontend
