// The engine's second half: gradients, from their capture to the end of backward.
#include <ATen/core/grad_mode.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <functional>

#include "comm/collective_monitor.h"
#include "engine/engine.h"
#include "engine/out_of_memory.h"
#include "torch_seams/dispatch_key.h"
#include "torch_seams/gradient_hooks.h"

namespace fsdp {

using schedule::ScheduledUnit;

void Engine::capture(Unit& unit, int64_t index, const at::Tensor& gradient) {
  observe_backward();
  TORCH_CHECK(!at::GradMode::is_enabled(), "fsdp: ", unit.where(), ": parameter '", unit.parameter(index).fqn,
              "': backward with create_graph=true cannot accumulate into .grad of sharded parameters; use "
              "torch::autograd::grad, which returns local gradients");
  // A gradient that is a view of a sharded parameter is read through the dispatcher, before this unit is locked.
  const at::Tensor copy = seams::has_sharded_key(gradient) ? gradient.clone() : at::Tensor();
  const bool complete = explaining_out_of_memory(
      *this,
      [&] { return c10::str("capturing the gradient of '", unit.parameter(index).fqn, "', unit '", unit.name(), "'"); },
      [&] {
        if (residency_.visited() != &unit && !unit.captures()) {
          reduce_before(unit);
        }
        return capture_in(unit, index, copy.defined() ? copy : gradient);
      });
  if (complete && options_.overlap.backward_prefetch == BackwardPrefetch::kPost) {
    release_after_backward(unit);
    prefetch();
  }
}

// Captures a gradient under the unit's lock. Returns whether the unit has all its gradients.
bool Engine::capture_in(Unit& unit, int64_t index, const at::Tensor& gradient) {
  std::lock_guard lock(unit.mutex);
  Unit::Place place = unit.place(index);
  ShardedParameter& parameter = place.flat.parameters()[place.parameter];
  unit.check_membership(parameter);
  if (!gradient.defined()) {
    return false;
  }
  const bool is_first = !place.gradient->capturing();
  place.gradient->capture(place.parameter, gradient, reducer_.pool());
  if (is_first) {
    trace_.sample_memory();
  }
  unit.install_sentinel(place.flat, place.parameter);
  return unit.has_all_gradients();
}

// [Note: when gradients are reduced]
// The order is fixed ([Note: the order of reductions]). A unit's turn comes when an operator uses an unrelated unit,
// which is also the point where make_room_for releases the first unit. If no operator has used the unrelated unit just
// before (the first layer's weight is not used in backward if the input needs no gradient), the turn comes when the
// first gradient of the unrelated unit arrives. Otherwise it comes at the end of backward. It does not come when the
// last of the unit's gradients arrives, because some of its parameters may take no part on this rank.
void Engine::reduce_before(Unit& unit) {
  if (seams::current_backward() == -1) {
    return;
  }
  const auto captures = [](const ScheduledUnit& other) { return as_unit(other).captures(); };
  for (ScheduledUnit* due : reduction_order_.due(unit, captures)) {
    reduce(as_unit(*due));
  }
}

// Whether the current backward reduces the unit's gradients.
bool Engine::syncs(const Unit& unit) const {
  const BackwardOptions& options = reducer_.current();
  return options.requires_gradient_sync && (options.requires_all_reduce || unit.groups().shard);
}

// Reduces all of the unit's gradients, as other ranks do.
void Engine::reduce(Unit& unit) {
  std::lock_guard lock(unit.mutex);
  for (size_t i = 0; i < unit.flat_parameters().size(); ++i) {
    if (FlatGradient* gradient = unit.gradient(i)) {
      reduce(unit, *gradient);
    }
  }
}

void Engine::reduce(Unit& unit, FlatGradient& gradient) {
  if (!gradient.capturing()) {
    gradient.resume(reducer_.pool());
  }
  reducer_.issue(unit, gradient);
}

void Engine::suspend_what_stays() {
  for (auto& unit : units_) {
    std::lock_guard lock(unit->mutex);
    for (size_t i = 0; i < unit->flat_parameters().size(); ++i) {
      FlatGradient* gradient = unit->gradient(i);
      if (gradient && gradient->capturing() && !syncs(*unit)) {
        gradient->suspend(reducer_.pool());
      }
    }
  }
}

namespace {

// Bits for one FlatParameter's gradients on a rank at the end of a backward.
constexpr char kCaptured = 1;  // this backward has captured some
constexpr char kLeft = 2;      // some are not being reduced yet

}  // namespace

// If a backward has captured nothing on this rank, it is a backward of autograd::grad, on all ranks.
void Engine::reduce_the_rest() {
  bool any_here = false;
  for_each_gradient([&](const Unit&, FlatGradient& gradient) {
    any_here |= gradient.has_captured() || gradient.capturing() || gradient.accumulating();
  });
  if (any_here) {
    for (ScheduledUnit* unit : reduction_order_.rest()) {
      reduce(as_unit(*unit));
    }
  }
  const std::string found = agree_on_gradients();
  const bool any_anywhere = found.find_first_not_of('\0') != std::string::npos;
  size_t next = 0;
  for (auto& unit : units_) {
    bool captured = false;
    for (size_t i = 0; i < unit->flat_parameters().size(); ++i) {
      FlatGradient* gradient = unit->gradient(i);
      if (!gradient) {
        continue;
      }
      captured |= (found[next] & kCaptured) != 0;
      if ((found[next++] & kLeft) != 0 && syncs(*unit)) {
        std::lock_guard lock(unit->mutex);
        reduce(*unit, *gradient);
      }
    }
    if (any_anywhere) {
      reduction_order_.note_captured(*unit, captured);
    }
  }
}

// [Note: two communicators and ranks that differ]
// One communicator compares what its ranks issue, in order. If reductions have a communicator of their own, a rank
// could wait for a reduction that another rank has left out, while that rank waits for a gather that the first one has
// not reached. Neither would see the difference before the timeout. Therefore, at the end of backward, before any rank
// waits for the last reductions, ranks compare over the gathers' communicator which reductions they have issued, and
// tell each other which gradients are left. Before the end of backward, the next reduction reveals the difference.
std::string Engine::agree_on_gradients() {
  std::string found;
  for_each_gradient([&](const Unit&, FlatGradient& gradient) {
    const bool left = gradient.capturing() || (gradient.accumulating() && reducer_.current().requires_all_reduce);
    found += static_cast<char>((gradient.take_captured() ? kCaptured : 0) | (left ? kLeft : 0));
  });
  for (Communicator* group : reducing_groups_) {
    for (const std::string& theirs : group->all_gather_bytes(found, {reducer_.describe_backward(), 0, Pass::kReduce})) {
      TORCH_CHECK(theirs.size() == found.size(), "fsdp: rank ", mesh().rank(), ": another rank has ", theirs.size(),
                  " FlatParameters with gradients, this one ", found.size());
      std::transform(found.begin(), found.end(), theirs.begin(), found.begin(), std::bit_or<char>());
    }
  }
  return found;
}

// Called with BackwardPrefetch::kPost for a unit that has all its gradients. The rest of this backward does not use the
// unit, unless it has frozen parameters, or the backward runs inside another one, which may come back to it. In all
// other cases a unit stays gathered until the next one is used, because other ranks may still wait for gradients of it.
void Engine::release_after_backward(Unit& unit) {
  std::lock_guard lock(unit.mutex);
  if (unit.has_frozen() || !backward_.is_outermost() || !unit.gathered() || unit.unsharded_nbytes() == 0 ||
      stays_gathered_after_backward(unit)) {
    return;
  }
  if (unit.pins == 0) {
    release(unit);
  } else {
    unit.release_when_unpinned = true;
  }
}

// Between backward passes that do not communicate, units that are not resharded after forward need not be gathered
// again.
bool Engine::stays_gathered_after_backward(const Unit& unit) const {
  return !reducer_.current().requires_gradient_sync && !reshards_after_forward(unit.options().strategy);
}

void Engine::begin_backward() {
  end_pass(Pass::kForward);
  reducer_.begin_backward();
  reduction_order_.begin_backward([this](const ScheduledUnit& scheduled) {
    const Unit& unit = as_unit(scheduled);
    return unit.trains() && syncs(unit);
  });
  notice_cleared_gradients();
  trim_gradients();
  if (options_.overlap.backward_prefetch == BackwardPrefetch::kPre) {
    prefetch();  // during the backward of the loss and of the root's last layers
  }
}

void Engine::finish_backward() {
  const auto reduce_what_is_left = [this] {
    suspend_what_stays();
    if (reducer_.current().requires_gradient_sync) {
      reduce_the_rest();
    }
    if (reducer_.current().is_last_backward) {
      reducer_.finish_all();
    }
  };
  explaining_out_of_memory(
      *this, [] { return "reducing gradients at the end of backward"; }, reduce_what_is_left);
  for (auto& unit : units_) {
    if (!stays_gathered_after_backward(*unit)) {
      release_if_idle(*unit);
    }
    std::lock_guard lock(unit->mutex);
    unit->unpark(parameter_pool_);
    if (!unit->gathered() && !unit->gathering()) {
      unit->await_readers();
    }
  }
  end_pass(Pass::kBackward);
  plan_memory();
  if (reducer_.current().requires_gradient_sync) {
    for (const auto& monitor : monitors_) {
      monitor->next_step();
    }
  }
}

void Engine::end_pass(Pass pass) {
  end_visit();
  residency_.end_pass(pass);
}

// Drops what a backward that threw has captured. Reductions in flight are dropped as well, because the user may have
// cleared the gradients since.
void Engine::discard_captures() {
  end_pass(Pass::kBackward);
  reducer_.drop_current();
  for_each_gradient([this](const Unit&, FlatGradient& gradient) { gradient.discard(reducer_.pool()); });
}

void Engine::forget_accumulated() {
  backward_.observe(shared_from_this());
  reducer_.finish_all();
  for_each_gradient([this](const Unit&, FlatGradient& gradient) { gradient.forget(reducer_.pool()); });
}

void Engine::for_each_gradient(const std::function<void(const Unit&, FlatGradient&)>& visit) {
  for (auto& unit : units_) {
    std::lock_guard lock(unit->mutex);
    for (size_t i = 0; i < unit->flat_parameters().size(); ++i) {
      if (FlatGradient* gradient = unit->gradient(i)) {
        visit(*unit, *gradient);
      }
    }
  }
}

void Engine::trim_gradients() {
  if (!options_.keep_memory) {
    for_each_gradient([](const Unit&, FlatGradient& gradient) { gradient.trim(); });
  }
}

void Engine::settle_gradients() {
  notice_cleared_gradients();
  reducer_.finish_all();
}

void Engine::notice_cleared_gradients() {
  backward_.observe(shared_from_this());  // cleans up after a failed backward before gradients are cleared
  for (auto& unit : units_) {
    std::lock_guard lock(unit->mutex);
    unit->check_membership();
    unit->notice_cleared_gradients();
  }
}

}  // namespace fsdp
