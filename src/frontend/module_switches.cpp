// ShardedModule's switches: for the whole tree, and for the units of single modules.
#include <algorithm>
#include <unordered_set>
#include <utility>

#include "base/finally.h"
#include "engine/engine.h"
#include "fsdp/options.h"
#include "fsdp/sharded_module.h"
#include "torch_seams/gradient_hooks.h"

namespace fsdp {
namespace {

using engine::Unit;
using Units = std::vector<Unit*>;

void check_no_backward(const char* call) {
  TORCH_CHECK(!seams::in_backward(), "fsdp: ", call, ": switches cannot change while backward runs, because other ",
              "units may have been reduced already. Call it before backward, or after it");
}

// Units that are to be cut are replaced by others, which have no switches.
void check_units_are_made(const Units& units, const char* call) {
  for (const Unit* unit : units) {
    TORCH_CHECK(!unit->pending_cut(), "fsdp: ", call, ": ", unit->where(),
                ": its units are not made yet (Options::auto_units). Call cut_units first");
  }
}

// Returns the units that were made for `module`, and with `recurse` those made for modules below it.
Units units_of(const engine::Engine& engine, const torch::nn::Module& module, bool recurse, const char* call) {
  check_no_backward(call);
  std::unordered_set<const void*> modules{&module};
  if (recurse) {
    for (const auto& below : module.modules(/*include_self=*/false)) modules.insert(below.get());
  }
  Units found;
  for (Unit* unit : engine.tree().all()) {
    const auto& origin = unit->names().modules();
    const auto is_meant = [&](const engine::AnnotatedModule& one) { return modules.count(one.identity) > 0; };
    if (std::any_of(origin.begin(), origin.end(), is_meant)) found.push_back(unit);
  }
  TORCH_CHECK(!found.empty(), "fsdp: ", engine.mesh().where(), ": ", call, ": no unit was made for the module of ",
              "class ", module.name(), recurse ? " or for a module below it" : "", "; units are made for modules that ",
              "fully_shard was called on or that the wrap policy picked; those of Options::auto_units belong to the ",
              "module that fully_shard was called on (see describe_units)");
  check_units_are_made(found, call);
  return found;
}

Units all_units(const engine::Engine& engine, const char* call) {
  check_no_backward(call);
  Units units = engine.tree().all();
  check_units_are_made(units, call);
  return units;
}

void check_factor(const std::optional<double>& factor) {
  TORCH_CHECK(!factor || *factor > 0, "fsdp: set_gradient_divide_factor: ", *factor, " must be positive");
}

// As fully_shard checks the option.
void check_reshard(const Units& units, const ReshardAfterForward& reshard) {
  for (const Unit* unit : units) {
    TORCH_CHECK(!reshard.on() || reshards_after_forward(unit->options().strategy),
                "fsdp: set_reshard_after_forward: ", unit->where(), " was made with ",
                to_string(unit->options().strategy),
                ", which keeps parameters gathered after forward. Give fully_shard FULL_SHARD or HYBRID_SHARD, with ",
                "reshard_after_forward = false for now");
    if (!reshard.group_size()) continue;
    const int group = *reshard.group_size(), all = unit->groups().shard ? unit->groups().shard->size() : 1;
    TORCH_CHECK(group > 1 && group < all && all % group == 0, "fsdp: set_reshard_after_forward: ", unit->where(), ": ",
                group, " must divide the ", all, " ranks of its shard group, and be neither 1 nor all of them; false ",
                "keeps parameters gathered, true reshards them over the whole group");
  }
}

}  // namespace

// ---------------------------------------------------------------- reductions

ShardedModule::NoSync::NoSync(ShardedModule& sharded)
    : engine_(sharded.engine().shared_from_this()),
      before_(std::exchange(engine_->gradients().settings().no_sync, true)) {}

ShardedModule::NoSync::~NoSync() { engine_->gradients().settings().no_sync = before_; }

void ShardedModule::set_requires_gradient_sync(bool on) {
  engine().gradients().settings().backward.requires_gradient_sync = on;
  for (const auto& unit : engine().units()) {
    unit->switches().requires_gradient_sync.reset();
    unit->switches().requires_all_reduce.reset();
  }
}

void ShardedModule::set_requires_gradient_sync(const torch::nn::Module& module, bool on, bool recurse) {
  for (Unit* unit : units_of(engine(), module, recurse, "set_requires_gradient_sync")) {
    unit->switches().requires_gradient_sync = unit->switches().requires_all_reduce = on;
  }
}

void ShardedModule::set_requires_all_reduce(bool on) {
  engine().gradients().settings().backward.requires_all_reduce = on;
  for (const auto& unit : engine().units()) unit->switches().requires_all_reduce.reset();
}

void ShardedModule::set_requires_all_reduce(const torch::nn::Module& module, bool on, bool recurse) {
  for (Unit* unit : units_of(engine(), module, recurse, "set_requires_all_reduce")) {
    unit->switches().requires_all_reduce = on;
  }
}

void ShardedModule::set_is_last_backward(bool on) { engine().gradients().settings().backward.is_last_backward = on; }

BackwardOptions ShardedModule::backward_options() const {
  const engine::ReductionSettings& settings = engine().gradients().settings();
  BackwardOptions options = settings.backward;
  options.requires_gradient_sync = options.requires_gradient_sync && !settings.no_sync;
  return options;
}

void ShardedModule::backward(const at::Tensor& loss, const BackwardOptions& options, bool retain_graph) {
  with_backward_options(options, [&] { loss.backward({}, retain_graph); });
}

void ShardedModule::with_backward_options(const BackwardOptions& options, const std::function<void()>& body) {
  std::shared_ptr<engine::Engine> engine = this->engine().shared_from_this();
  engine::ReductionSettings& settings = engine->gradients().settings();
  base::Finally restore(
      [&settings, backward = settings.backward, no_sync = settings.no_sync, no_all_reduce = settings.no_all_reduce] {
        settings.backward = backward;
        settings.no_sync = no_sync;
        settings.no_all_reduce = no_all_reduce;
      });
  settings.backward = options;
  settings.no_sync = !options.requires_gradient_sync;
  settings.no_all_reduce = !options.requires_all_reduce;
  body();
}

void ShardedModule::reduce_gradients() { engine().passes().reduce_accumulated(); }

void ShardedModule::set_gradient_divide_factor(std::optional<double> factor) {
  check_factor(factor);
  engine().gradients().settings().divide_factor = factor;
  for (const auto& unit : engine().units()) unit->switches().divide_factor.reset();
}

void ShardedModule::set_gradient_divide_factor(const torch::nn::Module& module, std::optional<double> factor) {
  check_factor(factor);
  for (Unit* unit : units_of(engine(), module, /*recurse=*/false, "set_gradient_divide_factor")) {
    unit->switches().divide_factor = factor;
  }
}

// ---------------------------------------------------------------- gathering and releasing

void ShardedModule::set_reshard_after_forward(const ReshardAfterForward& reshard) {
  const Units units = all_units(engine(), "set_reshard_after_forward");
  check_reshard(units, reshard);
  engine::set_reshard_after_forward(engine(), units, reshard);
}

void ShardedModule::set_reshard_after_forward(const torch::nn::Module& module, const ReshardAfterForward& reshard,
                                              bool recurse) {
  const Units units = units_of(engine(), module, recurse, "set_reshard_after_forward");
  check_reshard(units, reshard);
  engine::set_reshard_after_forward(engine(), units, reshard);
}

void ShardedModule::set_reshard_after_backward(bool on) {
  engine::set_reshard_after_backward(engine(), all_units(engine(), "set_reshard_after_backward"), on);
}

void ShardedModule::set_reshard_after_backward(const torch::nn::Module& module, bool on, bool recurse) {
  engine::set_reshard_after_backward(engine(), units_of(engine(), module, recurse, "set_reshard_after_backward"), on);
}

void ShardedModule::set_unshard_in_backward(const torch::nn::Module& module, bool on) {
  engine::set_unshard_in_backward(engine(), units_of(engine(), module, /*recurse=*/false, "set_unshard_in_backward"),
                                  on);
}

}  // namespace fsdp
