#include "engine/engine.h"

#include <ATen/core/grad_mode.h>
#include <c10/util/StringUtil.h>

#include <algorithm>

#include "base/finally.h"
#include "comm/checked/checked_communicator.h"
#include "comm/checked/collective_monitor.h"
#include "engine/requires_grad.h"
#include "flat/shardable.h"
#include "torch_seams/dispatch_key.h"
#include "torch_seams/gradient_hooks.h"

namespace fsdp::engine {

namespace {

// Returns the monitors of a mesh's groups, each once.
std::vector<std::shared_ptr<comm::CollectiveMonitor>> monitors_of(const ProcessMesh& mesh) {
  std::vector<std::shared_ptr<comm::CollectiveMonitor>> monitors;
  for (const auto& group : {mesh.world, mesh.shard, mesh.replicate}) {
    auto monitor = group ? comm::CheckedCommunicator::monitor_over(*group) : nullptr;
    if (monitor && std::find(monitors.begin(), monitors.end(), monitor) == monitors.end()) {
      monitors.push_back(std::move(monitor));
    }
  }
  return monitors;
}

}  // namespace

Engine::Engine(const EngineOptions& options)
    : context_(*this, options),
      tree_(context_),
      memory_(context_, tree_),
      gatherer_(context_, tree_, memory_, trace_),
      gradients_(context_, tree_, memory_, trace_),
      cutter_(context_, tree_, memory_, gatherer_, gradients_),
      precision_(context_, tree_, gatherer_, gradients_),
      preparation_(context_, tree_, memory_, gradients_),
      monitors_(monitors_of(options.mesh)),
      passes_(context_, preparation_, memory_, gatherer_, gradients_, monitors_,
              [this] { return shared_from_this(); }) {}

Engine::~Engine() {
  context_.streams.bring_home();
  tree_.detach_parameters();
}

// ---------------------------------------------------------------- building

Unit& Engine::add_unit(UnitOrigin origin, const UnitOptions& options,
                       std::vector<std::vector<flat::ShardedParameter>> groups) {
  for (const std::vector<flat::ShardedParameter>& group : groups) {
    for (const flat::ShardedParameter& parameter : group) flat::check_shardable(parameter.tensor, parameter.fqn);
  }
  Unit& unit = tree_.add(std::make_unique<Unit>(context_, std::move(origin), options));
  for (std::vector<flat::ShardedParameter>& group : groups) {
    memory_.explaining([] { return "making the shards of a unit"; }, [&] { unit.add(std::move(group)); });
  }
  unit.name_it();
  for (const auto& flat : unit.flat_parameters()) flat->memory().page_out(flat->shard());
  preparation_.invalidate();
  return unit;
}

void Engine::absorb(Engine& inner) {
  inner.precision_.set(false);
  inner.gatherer_.reshard_all();
  tree_.absorb(inner.tree_);
  cutter_.absorb(inner.cutter_);
  precision_.absorb(inner.precision_);
  preparation_.absorb(inner.preparation_);
  inner.absorbed_into_ = shared_from_this();
}

Engine& Engine::current() {
  Engine* engine = this;
  while (engine->absorbed_into_) engine = engine->absorbed_into_.get();
  return *engine;
}

// ---------------------------------------------------------------- uses

void Engine::enter(Unit& unit, int64_t parameter) {
  if (!gatherer_.visits(unit) && !seams::in_backward() && requires_grad_changed(unit)) {
    preparation_.follow_requires_grad();
  }
  preparation_.ensure();
  passes_.observe();
  try {
    if (!gatherer_.visits(unit)) {
      memory_.explaining([&] { return c10::str("gathering unit '", unit.name(), "'"); }, [&] { begin_visit(unit); });
    }
    gatherer_.pin(unit);
  } catch (c10::Error& error) {
    error.add_context(
        c10::str(unit.where(), ": the operator that came next uses parameter '", unit.parameter(parameter).fqn, "'"));
    throw;
  }
}

void Engine::begin_visit(Unit& unit) {
  cutter_.note_use(unit);
  passes_.note_visit();
  gatherer_.end_visit();
  gradients_.note_use(unit);
  const bool counts = gatherer_.begin_visit(unit);
  gradients_.reduce_before(unit);
  if (counts) gatherer_.gather_for_visit(unit);
}

void Engine::capture(Unit& unit, int64_t index, const at::Tensor& gradient) {
  passes_.observe();
  if (!unit.parameter(index).tensor.requires_grad())
    return;  // frozen since forward: autograd accumulates nothing either
  TORCH_CHECK(!at::GradMode::is_enabled(), "fsdp: ", unit.where(), ": parameter '", unit.parameter(index).fqn,
              "': backward with create_graph=true cannot accumulate into .grad of sharded parameters; use "
              "torch::autograd::grad, which returns local gradients");
  // A gradient that is a view of a sharded parameter is read through the dispatcher, before this unit is locked.
  const at::Tensor copy = seams::has_sharded_key(gradient) ? gradient.clone() : at::Tensor();
  const bool complete = memory_.explaining(
      [&] { return c10::str("capturing the gradient of '", unit.parameter(index).fqn, "', unit '", unit.name(), "'"); },
      [&] {
        if (!gatherer_.visits(unit) && !unit.gradients().capturing()) gradients_.reduce_before(unit);
        return gradients_.capture(unit, index, copy.defined() ? copy : gradient);
      });
  // The rest of this backward does not use the unit, unless it has frozen parameters, or the backward runs inside
  // another one, which may come back to it. In all other cases a unit stays gathered until the next one is used,
  // because other ranks may still wait for gradients of it.
  if (complete && options().overlap.backward_prefetch == BackwardPrefetch::kPost) {
    if (!unit.flat_parameters().has_frozen() && passes_.is_outermost() &&
        !gradients_.stays_gathered_after_backward(unit)) {
      gatherer_.release_after_last_use(unit);
    }
    gatherer_.prefetch();
  }
}

// ---------------------------------------------------------------- cutting units

void Engine::cut_units(const schedule::UseRecord* only) {
  const auto records = cutter_.records(only);
  if (records.empty()) return;
  preparation_.ensure();
  gatherer_.end_pass(Pass::kForward);
  cutter_.check_ready();
  gatherer_.reshard_all();
  gradients_.reducer().finish_all();
  for (const auto& record : records) cutter_.cut(record);
  preparation_.repeat();
}

void Engine::cut_before_backward(const Unit& unit) {
  const auto written = [&] {
    base::MutexLock lock(unit.mutex);
    return unit.versions.written();
  };
  if (seams::in_backward() && !written()) cut_units();
}

// ---------------------------------------------------------------- what the user asks

void Engine::unshard(const std::vector<Unit*>& units, bool async_op) {
  preparation_.ensure();
  passes_.observe();
  gatherer_.unshard(units);
  if (!async_op) gatherer_.wait_for(units);
}

void Engine::pin(const std::vector<Unit*>& units, const std::function<void()>& body) {
  std::vector<Unit*> entered;
  base::Finally unpin([&] {
    for (Unit* unit : entered) gatherer_.unpin(*unit);
  });
  for (Unit* unit : units) {
    preparation_.ensure();
    passes_.observe();
    gatherer_.hold(*unit);
    entered.push_back(unit);
  }
  body();
}

EngineStats Engine::stats() const {
  EngineStats stats;
  stats.units = static_cast<int64_t>(units().size());
  stats.steps = passes_.steps().steps();
  stats.forwards_of_step = passes_.steps().forwards_of_step();
  stats.backwards_of_step = passes_.steps().backwards_of_step();
  gatherer_.count(stats);
  gradients_.reducer().count(stats);
  stats.gathered_bytes = memory_.parameters().in_use_bytes();
  stats.peak_gathered_bytes = memory_.parameters().peak_bytes();
  stats.gradient_buffer_bytes = memory_.gradients().in_use_bytes();
  stats.peak_gradient_buffer_bytes = memory_.gradients().peak_bytes();
  return stats;
}

std::string Engine::collective_log() const {
  std::string text;
  for (const auto& monitor : monitors_) text += monitor->record().text();
  return text;
}

}  // namespace fsdp::engine
