#include "engine/engine.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <numeric>

#include "engine/plan.h"
#include "flat/shardable.h"
#include "torch_seams/dispatch_key.h"
#include "torch_seams/gradient_hooks.h"

namespace fsdp {

Engine::Engine(const EngineOptions& options)
    : options_(options),
      parameter_pool_(options.device),
      reducer_(options.device),
      backward_({[this] { begin_backward(); }, [this] { finish_backward(); }, [this] { discard_captures(); }}) {}

Engine::~Engine() {
  // Parameters may outlive the engine: from now on a touch says so.
  for (auto& unit : units_) {
    for (auto& flat : unit->flat_parameters()) {
      for (ShardedParameter& parameter : flat->parameters()) {
        if (flat->attached()) {
          seams::empty_storage(parameter.storage(), parameter.owner);
        }
        parameter.owner->unit = nullptr;
        if (seams::StorageOwnerPtr sentinel = parameter.sentinel_owner.lock()) {
          sentinel->unit = nullptr;
        }
      }
    }
  }
}

// ---------------------------------------------------------------- building

namespace {

// The hooks hold the owner, not the unit: they may outlive it.
void hook_capture(ShardedParameter& parameter, int64_t index) {
  seams::StorageOwnerPtr owner = parameter.owner;
  parameter.capture_hook = seams::add_gradient_capture(parameter.tensor, [owner, index](const at::Tensor& gradient) {
    auto* unit = static_cast<Unit*>(owner->unit.load());
    TORCH_CHECK(unit, "fsdp: a gradient arrived at a parameter whose sharded module is gone");
    unit->engine->capture(*unit, index, gradient);
  });
}

void add_tripwire(const ShardedParameter& parameter, int64_t index) {
  seams::add_gradient_tripwire(parameter.tensor, [owner = parameter.owner, index] {
    if (auto* unit = static_cast<Unit*>(owner->unit.load())) {
      unit->check_membership(unit->parameter(index));
    }
  });
}

// Calls `visit` with each parameter that gets gradients and its index in the unit.
void for_each_trainable(Unit& unit, const std::function<void(ShardedParameter&, int64_t)>& visit) {
  int64_t index = 0;
  for (auto& flat : unit.flat_parameters()) {
    for (ShardedParameter& parameter : flat->parameters()) {
      if (flat->requires_grad()) {
        visit(parameter, index);
      }
      ++index;
    }
  }
}

}  // namespace

Unit& Engine::add_unit(std::vector<AnnotatedModule> modules, const UnitOptions& options,
                       std::vector<std::vector<ShardedParameter>> groups) {
  for (const std::vector<ShardedParameter>& group : groups) {
    for (const ShardedParameter& parameter : group) {
      check_shardable(parameter.tensor, parameter.fqn);
    }
  }
  units_.push_back(std::make_unique<Unit>(*this, std::move(modules), options, std::move(groups), options_.device));
  Unit& unit = *units_.back();
  for_each_trainable(unit, [](ShardedParameter& parameter, int64_t index) {
    hook_capture(parameter, index);
    add_tripwire(parameter, index);
  });
  prepared_ = false;
  return unit;
}

void Engine::set_full_precision(bool on) {
  if (full_precision_ == on) {
    return;
  }
  TORCH_CHECK(seams::current_backward() == -1, "fsdp: full precision cannot be switched during backward");
  reshard();
  reducer_.finish_all();
  for (auto& unit : units_) {
    std::lock_guard lock(unit->mutex);
    TORCH_CHECK(
        !unit->gathered(), "fsdp: ", unit->where(),
        ": full precision cannot be switched while its parameters are in use (inside pin() or summon_full_params)");
    for (size_t i = 0; i < unit->flat_parameters().size(); ++i) {
      FlatGradient* gradient = unit->gradient(i);
      TORCH_CHECK(!gradient || !gradient->accumulating(), "fsdp: ", unit->where(),
                  ": full precision cannot be switched while gradients are accumulated without communication");
    }
    unit->invalidate_saved_values();
    unit->set_full_precision(on);
    for_each_trainable(*unit, hook_capture);
  }
  for (const CastBuffer& cast : buffers_) {
    at::NoGradGuard no_grad;
    cast.buffer.set_data(cast.buffer.to(on ? cast.original : cast.low));
  }
  full_precision_ = on;
}

void Engine::absorb(Engine& inner) {
  inner.set_full_precision(false);
  inner.reshard();
  for (auto& unit : inner.units_) {
    unit->engine = this;
    unit->is_root = false;
    units_.push_back(std::move(unit));
  }
  inner.units_.clear();
  park_groups_.merge(inner.park_groups_);
  buffers_.insert(buffers_.end(), inner.buffers_.begin(), inner.buffers_.end());
  inner.absorbed_into_ = shared_from_this();
  prepared_ = false;
}

Engine& Engine::current() {
  Engine* engine = this;
  while (engine->absorbed_into_) {
    engine = engine->absorbed_into_.get();
  }
  return *engine;
}

bool Engine::unused() const {
  for (const auto& unit : units_) {
    for (const auto& flat : unit->flat_parameters()) {
      for (const ShardedParameter& parameter : flat->parameters()) {
        // The engine's own references: the parameter, and its gradient accumulator's.
        size_t own = parameter.capture_hook ? 2 : 1;
        if (parameter.tensor.use_count() > own) {
          return false;
        }
      }
    }
  }
  return true;
}

// ---------------------------------------------------------------- touches

void Engine::prepare() {
  std::lock_guard lock(prepare_mutex_);
  if (!prepared_) {
    compare_plans(*this);
    make_park_groups();
    prepared_ = true;
  }
}

void Engine::make_park_groups() {
  for (auto& unit : units_) {
    std::optional<int> size =
        unit->options().reshard_after_forward ? unit->options().reshard_after_forward->group_size() : std::nullopt;
    if (!size || unit->park_group) {
      continue;
    }
    const std::shared_ptr<Communicator>& group = unit->groups().shard;
    std::shared_ptr<Communicator>& smaller = park_groups_[{group.get(), *size}];
    if (!smaller) {
      std::vector<int> members(*size);
      std::iota(members.begin(), members.end(), group->rank() / *size * *size);
      smaller = group->subgroup(members, {"reshard_after_forward", static_cast<uint64_t>(*size), Pass::kSetup});
    }
    unit->park_group = smaller;
  }
}

void Engine::verify_plan() {
  prepared_ = false;
  prepare();
}

void Engine::enter(Unit& unit) {
  if (!prepared_) {
    prepare();
  }
  if (backward_.changed()) {
    backward_.observe(shared_from_this());
  }
  if (last_entered_.exchange(&unit) != &unit) {
    make_room_for(unit);
    reduce_before(unit);
  }
  std::lock_guard lock(unit.mutex);
  TORCH_CHECK(!unit.only_on_rank_0, "fsdp: ", unit.where(),
              ": a parameter was used inside summon_full_params(rank0_only): there only rank 0 has it");
  ensure_gathered(unit);
  unit.awaits_use = false;
  ++unit.pins;
}

void Engine::leave(Unit& unit) {
  std::lock_guard lock(unit.mutex);
  if (--unit.pins == 0 && unit.gathered() && (strict_ || unit.release_when_unpinned)) {
    release(unit);
  }
}

// [Note: release without hooks]
// A unit is released when an operator of another unit comes that is neither its ancestor nor its descendant: module
// trees run depth first, so such an operator means that the unit's module has ended. Of the related ones only the most
// recent stays, so that beside the root (and units that stay gathered on purpose) no more than two are gathered at a
// time. A unit released too early is gathered again at its next use: that costs time, never correctness.
void Engine::make_room_for(Unit& unit) {
  std::vector<Unit*> victims;
  {
    std::lock_guard lock(mutex_);
    bool related_seen = false;
    for (auto it = gathered_.rbegin(); it != gathered_.rend(); ++it) {
      Unit* other = *it;
      if (other == &unit || other->keeps_gathered_after_forward() || other->awaits_use) {
        continue;
      }
      bool stays = other->is_related_to(unit) && !related_seen;
      related_seen |= stays;
      if (!stays) {
        victims.push_back(other);
      }
    }
    if (auto it = std::find(gathered_.begin(), gathered_.end(), &unit); it != gathered_.end()) {
      std::rotate(it, it + 1, gathered_.end());
    }
  }
  for (Unit* victim : victims) {
    release_if_idle(*victim);
  }
}

namespace {

// Whether the running backward may use values of the unit that a forward before it saved. A forward inside backward (a
// function's backward that runs modules of its own) does not, where the unit was used inside of backward passes only.
bool backward_relies_on(const Unit& unit) {
  return seams::current_backward() != -1 && (unit.used_outside_backward || !at::GradMode::is_enabled());
}

}  // namespace

// Views of parameters do not gather, but remember the version of what they view: an optimizer step must have counted
// before, or autograd takes the view for older than the parameter.
void Engine::enter_view(Unit& unit) {
  std::lock_guard lock(unit.mutex);
  if (!backward_relies_on(unit)) {
    notice_shard_writes(unit);
  }
}

void Engine::notice_shard_writes(Unit& unit) {
  uint64_t version = unit.shard_version();
  bool relies = backward_relies_on(unit);
  unit.used_outside_backward |= seams::current_backward() == -1;
  if (!unit.stamp || *unit.stamp == version) {
    return;
  }
  TORCH_CHECK(!relies, "fsdp: ", unit.where(),
              ": its shards were written between forward and backward (an optimizer step?), so that this backward "
              "would use other values than its forward. Run backward before the step, or forward again");
  unit.invalidate_saved_values();
  unit.unpark(parameter_pool_);
  if (unit.gathering()) {
    finish_gather(unit);  // what is under way is stale
  }
  if (unit.gathered() && unit.unsharded_nbytes() > 0) {
    TORCH_CHECK(unit.pins == 0, "fsdp: ", unit.where(), ": its shards were written while an operator uses it");
    release(unit);
  }
  unit.stamp = version;
}

void Engine::begin_gather(Unit& unit) {
  notice_shard_writes(unit);
  if (unit.gathered() || unit.gathering()) {
    return;
  }
  bool in_backward = seams::current_backward() != -1;
  unit.begin_gather(parameter_pool_, in_backward ? Pass::kBackward : Pass::kForward, may_alias_);
  if (!unit.stamp) {
    unit.stamp = unit.shard_version();
  }
}

void Engine::ensure_gathered(Unit& unit) {
  begin_gather(unit);
  if (unit.gathering()) {
    finish_gather(unit);
  }
}

void Engine::finish_gather(Unit& unit) {
  unit.finish_gather();
  std::lock_guard lock(mutex_);
  gathered_.push_back(&unit);
  stats_.peak_gathered_units = std::max(stats_.peak_gathered_units, static_cast<int64_t>(gathered_.size()));
}

void Engine::release(Unit& unit) {
  if (seams::current_backward() == -1 && unit.write_scopes == 0) {
    unit.park(parameter_pool_);
  }
  unit.awaits_use = false;
  unit.release(parameter_pool_);
  std::lock_guard lock(mutex_);
  std::erase(gathered_, &unit);
}

void Engine::release_if_idle(Unit& unit) {
  std::lock_guard lock(unit.mutex);
  if (unit.gathering()) {
    finish_gather(unit);
  }
  if (unit.gathered() && unit.pins == 0) {
    release(unit);
  }
}

}  // namespace fsdp
