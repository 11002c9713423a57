#include "engine/engine.h"

#include <algorithm>
#include <numeric>

#include "base/allocation_scope.h"
#include "comm/checked_communicator.h"
#include "engine/out_of_memory.h"
#include "engine/plan.h"
#include "flat/shardable.h"
#include "torch_seams/dispatch_key.h"
#include "torch_seams/gradient_hooks.h"

namespace fsdp {

namespace {

// Returns the monitors of a mesh's groups, each once.
std::vector<std::shared_ptr<CollectiveMonitor>> monitors_of(const ProcessMesh& mesh) {
  std::vector<std::shared_ptr<CollectiveMonitor>> monitors;
  for (const auto& group : {mesh.world, mesh.shard, mesh.replicate}) {
    auto monitor = group ? CheckedCommunicator::monitor_over(*group) : nullptr;
    if (monitor && std::find(monitors.begin(), monitors.end(), monitor) == monitors.end()) {
      monitors.push_back(std::move(monitor));
    }
  }
  return monitors;
}

// Returns the memory of a group whose ranks read each other's gradients in place, or an empty source if there is none.
BufferPool::Source source_of_gradient_buffers(const EngineOptions& options) {
  for (const auto& group : {options.mesh.world, options.mesh.shard, options.mesh.replicate}) {
    if (group && group->reads_in_place() && options.memory.compute_device().is_cpu()) {
      return [group](int64_t nbytes) { return group->reduction_input(nbytes); };
    }
  }
  return {};
}

}  // namespace

Engine::Engine(const EngineOptions& options)
    : options_(options),
      streams_(device(), options.overlap.high_priority_streams ? StreamPriority::kHigh : StreamPriority::kNormal),
      parameter_pool_(device(), options.keep_memory),
      reducer_(streams_,
               {.keep_memory = options.keep_memory,
                .to_host = options.memory.apart(),
                .source = source_of_gradient_buffers(options)},
               trace_),
      backward_({[this] { begin_backward(); }, [this] { finish_backward(); }, [this] { discard_captures(); }}),
      residency_(options.overlap.max_gathered_units),
      monitors_(monitors_of(options.mesh)) {}

Engine::~Engine() {
  streams_.bring_home();
  // Parameters may outlive the engine. From now on, a touch of one throws an error that says so.
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

// The hooks hold the owner instead of the unit, because they may outlive the unit.
void hook_capture(ShardedParameter& parameter) {
  seams::StorageOwnerPtr owner = parameter.owner;
  parameter.capture_hook = seams::add_gradient_capture(parameter.tensor, [owner](const at::Tensor& gradient) {
    auto* unit = static_cast<Unit*>(owner->unit.load());
    TORCH_CHECK(
        unit,
        "fsdp: a gradient arrived at a parameter whose sharded module was destroyed: keep it until backward has ended");
    if (unit->to_be_cut) {
      unit->engine->cut_before_backward(*unit);
      unit = static_cast<Unit*>(owner->unit.load());
    }
    unit->engine->capture(*unit, owner->index, gradient);
  });
}

void add_tripwire(const ShardedParameter& parameter) {
  seams::add_gradient_tripwire(parameter.tensor, [owner = parameter.owner] {
    if (auto* unit = static_cast<Unit*>(owner->unit.load())) {
      unit->check_membership(unit->parameter(owner->index));
    }
  });
}

// Calls `visit` with each parameter that gets gradients.
void for_each_trainable(Unit& unit, const std::function<void(ShardedParameter&)>& visit) {
  for (auto& flat : unit.flat_parameters()) {
    for (ShardedParameter& parameter : flat->parameters()) {
      if (flat->requires_grad()) {
        visit(parameter);
      }
    }
  }
}

}  // namespace

Unit& Engine::add_unit(UnitOrigin origin, const UnitOptions& options,
                       std::vector<std::vector<ShardedParameter>> groups) {
  for (const std::vector<ShardedParameter>& group : groups) {
    for (const ShardedParameter& parameter : group) {
      check_shardable(parameter.tensor, parameter.fqn);
    }
  }
  units_.push_back(std::make_unique<Unit>(*this, std::move(origin), options));
  Unit& unit = *units_.back();
  for (std::vector<ShardedParameter>& group : groups) {
    explaining_out_of_memory(
        *this, [] { return "making the shards of a unit"; }, [&] { unit.add(std::move(group)); });
  }
  unit.name_it();
  for (const auto& flat : unit.flat_parameters()) {
    flat->memory().page_out(flat->shard());
  }
  for_each_trainable(unit, [](ShardedParameter& parameter) {
    hook_capture(parameter);
    add_tripwire(parameter);
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
    unit->set_root(false);
    units_.push_back(std::move(unit));
  }
  inner.units_.clear();
  park_groups_.merge(inner.park_groups_);
  roots_.insert(roots_.end(), inner.roots_.begin(), inner.roots_.end());
  buffers_.insert(buffers_.end(), inner.buffers_.begin(), inner.buffers_.end());
  std::move(inner.use_records_.begin(), inner.use_records_.end(), std::back_inserter(use_records_));
  std::move(inner.execution_order_.begin(), inner.execution_order_.end(), std::back_inserter(execution_order_));
  std::move(inner.retired_units_.begin(), inner.retired_units_.end(), std::back_inserter(retired_units_));
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

void Engine::order_gathers_behind_writes() {
  streams_.order_gathers_behind_writes();
  for (auto& unit : units_) {
    unit->ordered_version = unit->shard_version();
  }
}

void Engine::with_offloaded_memory(const std::function<void()>& body) {
  const std::shared_ptr<MappedFiles>& files = options_.memory.files();
  if (!files) {
    return body();
  }
  {
    AllocationScope scope(files);
    body();
  }
  files->trim();
  files->page_out();
}

std::string Engine::collective_log() const {
  std::string text;
  for (const auto& monitor : monitors_) {
    text += monitor->record().text();
  }
  return text;
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

// ---------------------------------------------------------------- preparing

void Engine::prepare() {
  std::lock_guard lock(prepare_mutex_);
  if (!prepared_) {
    compare_plans(*this);
    share_shards();
    make_park_groups();
    make_reduce_groups();
    for_each_gradient([](const Unit& unit, FlatGradient& gradient) { gradient.stays = unit.is_root(); });
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

void Engine::make_reduce_groups() {
  reducing_groups_.clear();
  const auto add = [this](const std::shared_ptr<Communicator>& group) {
    bool known = std::find(reducing_groups_.begin(), reducing_groups_.end(), group.get()) != reducing_groups_.end();
    if (group && group->size() > 1 && !known) {
      reducing_groups_.push_back(group.get());
    }
  };
  for (auto& unit : units_) {
    if (const std::shared_ptr<Communicator>& group = unit->groups().shard; group && unit->trains()) {
      unit->set_reduce_group(options_.overlap.one_communicator ? group : group->twin());
      add(group);
    }
  }
  for (auto& unit : units_) {
    if (unit->trains()) {
      add(unit->groups().replicate);
    }
  }
}

void Engine::verify_plan() {
  prepared_ = false;
  prepare();
}

}  // namespace fsdp
