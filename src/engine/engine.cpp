#include "engine/engine.h"

#include <ATen/core/grad_mode.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <numeric>

#include "base/finally.h"
#include "comm/checked/checked_communicator.h"
#include "comm/checked/collective_monitor.h"
#include "engine/agreement.h"
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

// At the first use, and not in fully_shard, because outer modules may be annotated after inner ones.
void warn_if_one_unit(const Engine& engine) {
  if (engine.options().could_have_units_below && engine.units().size() == 1 && engine.mesh().size() > 1 &&
      reshards_after_forward(engine.units().front()->options().strategy)) {
    TORCH_WARN(
        "fsdp: one unit holds the whole model, so all of its parameters are gathered at once and sharding saves "
        "only optimizer and gradient memory. Set Options::auto_wrap_policy or annotate inner modules first");
  }
}

}  // namespace

Engine::Engine(const EngineOptions& options)
    : context_(*this, options),
      tree_(context_),
      memory_(context_, tree_),
      gatherer_(context_, tree_, memory_, trace_),
      gradients_(context_, tree_, memory_, trace_),
      cutter_(context_, tree_, memory_, gatherer_, gradients_),
      backward_({[this] { begin_backward(); }, [this] { finish_backward(); }, [this] { discard_captures(); }}),
      monitors_(monitors_of(options.mesh)) {}

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
  prepared_ = false;
  return unit;
}

void Engine::absorb(Engine& inner) {
  inner.set_full_precision(false);
  inner.gatherer_.reshard_all();
  tree_.absorb(inner.tree_);
  cutter_.absorb(inner.cutter_);
  buffers_.insert(buffers_.end(), inner.buffers_.begin(), inner.buffers_.end());
  {
    base::MutexLock lock(preparing_);
    base::MutexLock lock_inner(inner.preparing_);
    park_groups_.merge(inner.park_groups_);
  }
  inner.absorbed_into_ = shared_from_this();
  prepared_ = false;
}

Engine& Engine::current() {
  Engine* engine = this;
  while (engine->absorbed_into_) engine = engine->absorbed_into_.get();
  return *engine;
}

void Engine::prepare() {
  base::MutexLock lock(preparing_);
  if (!prepared_) {
    warn_if_one_unit(*this);
    compare_sharding(*this);
    memory_.share_shards();
    make_park_groups();
    gradients_.make_groups();
    prepared_ = true;
  }
}

void Engine::follow_requires_grad() {
  if (seams::in_backward()) return;
  const auto changed = [](const auto& unit) { return unit->requires_grad_changed(); };
  if (std::none_of(units().begin(), units().end(), changed)) return;
  gradients_.reducer().finish_all();
  prepared_ = false;
  for (const auto& unit : units()) {
    base::MutexLock lock(unit->mutex);
    unit->follow_requires_grad();
  }
}

void Engine::compare_again() {
  prepared_ = false;
  prepare();
}

void Engine::make_park_groups() {
  for (const auto& unit : tree_.units()) {
    const std::optional<ReshardAfterForward>& reshard = unit->options().reshard_after_forward;
    const std::optional<int> size = reshard ? reshard->group_size() : std::nullopt;
    base::MutexLock lock(unit->mutex);
    if (!size || unit->buffers.park_group()) continue;
    const std::shared_ptr<Communicator>& group = unit->groups().shard;
    std::shared_ptr<Communicator>& smaller = park_groups_[{group.get(), *size}];
    if (!smaller) {
      std::vector<int> members(*size);
      std::iota(members.begin(), members.end(), group->rank() / *size * *size);
      smaller = group->subgroup(members, {"reshard_after_forward", static_cast<uint64_t>(*size), Pass::kSetup});
    }
    unit->buffers.set_park_group(smaller);
  }
}

// ---------------------------------------------------------------- uses

void Engine::observe_backward() {
  if (backward_.changed()) backward_.observe(shared_from_this());
}

void Engine::enter(Unit& unit, int64_t parameter) {
  if (!gatherer_.visits(unit) && !seams::in_backward() && unit.requires_grad_changed()) follow_requires_grad();
  if (!prepared_) prepare();
  observe_backward();
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
  gatherer_.end_visit();
  gradients_.note_use(unit);
  const bool counts = gatherer_.begin_visit(unit);
  gradients_.reduce_before(unit);
  if (counts) gatherer_.gather_for_visit(unit);
}

void Engine::capture(Unit& unit, int64_t index, const at::Tensor& gradient) {
  observe_backward();
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
        if (!gatherer_.visits(unit) && !unit.captures()) gradients_.reduce_before(unit);
        return gradients_.capture(unit, index, copy.defined() ? copy : gradient);
      });
  // The rest of this backward does not use the unit, unless it has frozen parameters, or the backward runs inside
  // another one, which may come back to it. In all other cases a unit stays gathered until the next one is used,
  // because other ranks may still wait for gradients of it.
  if (complete && options().overlap.backward_prefetch == BackwardPrefetch::kPost) {
    if (!unit.has_frozen() && backward_.is_outermost() && !gradients_.stays_gathered_after_backward(unit)) {
      gatherer_.release_after_last_use(unit);
    }
    gatherer_.prefetch();
  }
}

// ---------------------------------------------------------------- backward passes

void Engine::begin_backward() {
  gatherer_.end_pass(Pass::kForward);
  gradients_.begin_backward();
  if (options().overlap.backward_prefetch == BackwardPrefetch::kPre) {
    gatherer_.prefetch();  // during the backward of the loss and of the root's last layers
  }
}

void Engine::finish_backward() {
  memory_.explaining([] { return "reducing gradients at the end of backward"; }, [&] { gradients_.finish_backward(); });
  gatherer_.release_after_backward([this](const Unit& unit) { return gradients_.stays_gathered_after_backward(unit); });
  gatherer_.end_pass(Pass::kBackward);
  memory_.reserve(std::max(gatherer_.largest_window(Pass::kForward), gatherer_.largest_window(Pass::kBackward)),
                  gradients_.reducer().largest_window());
  if (gradients_.syncs_any()) {
    for (const auto& monitor : monitors_) monitor->next_step();
  }
}

void Engine::reduce_accumulated() {
  TORCH_CHECK(!seams::in_backward(), "fsdp: reduce_gradients() was called while backward runs");
  prepare();
  observe_backward();
  begin_backward();
  const bool reduces = gradients_.syncs_any();
  finish_backward();
  TORCH_CHECK(reduces,
              "fsdp: reduce_gradients() was called where backward passes do not reduce gradients, as inside no_sync()");
}

void Engine::discard_captures() {
  gatherer_.end_pass(Pass::kBackward);
  gradients_.discard_captures();
}

// ---------------------------------------------------------------- cutting units

void Engine::cut_units(const schedule::UseRecord* only) {
  const auto records = cutter_.records(only);
  if (records.empty()) return;
  prepare();
  gatherer_.end_pass(Pass::kForward);
  cutter_.check_ready();
  gatherer_.reshard_all();
  gradients_.reducer().finish_all();
  for (const auto& record : records) cutter_.cut(record);
  compare_again();
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
  prepare();
  observe_backward();
  gatherer_.unshard(units);
  if (!async_op) gatherer_.wait_for(units);
}

void Engine::pin(const std::vector<Unit*>& units, const std::function<void()>& body) {
  std::vector<Unit*> entered;
  base::Finally unpin([&] {
    for (Unit* unit : entered) gatherer_.unpin(*unit);
  });
  for (Unit* unit : units) {
    prepare();
    observe_backward();
    gatherer_.hold(*unit);
    entered.push_back(unit);
  }
  body();
}

void Engine::check_may_switch_precision(Unit& unit) const {
  base::MutexLock lock(unit.mutex);
  TORCH_CHECK(
      !unit.buffers.gathered(), "fsdp: ", unit.where(),
      ": full precision cannot be switched while its parameters are in use (inside pin() or summon_full_params)");
  for (size_t i = 0; i < unit.flat_parameters().size(); ++i) {
    const FlatGradient* gradient = unit.gradient(i);
    TORCH_CHECK(!gradient || !gradient->accumulating(), "fsdp: ", unit.where(),
                ": full precision cannot be switched while gradients are accumulated without communication");
  }
}

void Engine::set_full_precision(bool on) {
  if (context_.full_precision == on) return;
  TORCH_CHECK(!seams::in_backward(), "fsdp: full precision cannot be switched during backward");
  gatherer_.reshard_all();
  gradients_.reducer().finish_all();
  for (const auto& unit : tree_.units()) check_may_switch_precision(*unit);
  for (const auto& unit : tree_.units()) {
    base::MutexLock lock(unit->mutex);
    unit->versions.invalidate_saved_values();
    unit->set_full_precision(on);
  }
  for (const CastBuffer& cast : buffers_) {
    at::NoGradGuard no_grad;
    cast.buffer.set_data(cast.buffer.to(on ? cast.original : cast.low));
  }
  context_.full_precision = on;
}

// Ranks compare these switches, and make groups for them, when a unit is used next.
void Engine::set_reshard_after_forward(const std::vector<Unit*>& units, const ReshardAfterForward& reshard) {
  for (Unit* unit : units) {
    unit->set_reshard_after_forward(reshard);
    gatherer_.note_changed(*unit);
  }
  prepared_ = false;
}

void Engine::set_reshard_after_backward(const std::vector<Unit*>& units, bool on) {
  for (Unit* unit : units) {
    unit->set_stays_after_backward(!on);
    gatherer_.note_changed(*unit);
  }
  prepared_ = false;
}

void Engine::set_unshard_in_backward(const std::vector<Unit*>& units, bool on) {
  for (Unit* unit : units) unit->switches().unshard_in_backward = on;
  prepared_ = false;
}

void Engine::settle_gradients() {
  backward_.observe(shared_from_this());
  gradients_.settle();
}

void Engine::discard_accumulated() {
  backward_.observe(shared_from_this());
  gradients_.notice_cleared();
  gradients_.discard_accumulated();
}

void Engine::reset() {
  discard_captures();
  backward_.observe(shared_from_this());
  gradients_.discard_accumulated();
  gatherer_.reshard_all();
}

EngineStats Engine::stats() const {
  EngineStats stats;
  stats.units = static_cast<int64_t>(units().size());
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
