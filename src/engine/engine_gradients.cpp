// The engine's second half: gradients, from their capture to the end of backward.
#include <ATen/core/grad_mode.h>
#include <c10/util/StringUtil.h>

#include <algorithm>

#include "comm/collective_monitor.h"
#include "engine/engine.h"
#include "engine/out_of_memory.h"
#include "torch_seams/dispatch_key.h"
#include "torch_seams/gradient_hooks.h"

namespace fsdp {

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
  if (complete && options_.overlap.backward_prefetch != BackwardPrefetch::kNone) {
    prefetch();
  }
}

// Whether the unit has all its gradients.
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
  return place.gradient->complete() && release_after_backward(unit);
}

// [Note: when gradients are reduced]
// A unit's gradients are reduced when an operator of an unrelated unit comes (that is the point where make_room_for
// releases it), or, of one that no operator has used just before, the first gradient (the first layer's weight is not
// used in backward where the input needs no gradient), else at the end of backward. Not when the last of its gradients
// arrives: a parameter may take no part on one rank only, and then the ranks would issue their collectives in different
// orders.
void Engine::reduce_before(Unit& unit) {
  if (seams::current_backward() == -1) {
    return;
  }
  for (auto& other : units_) {
    if (other.get() != &unit && other->captures() && syncs(*other) && !other->is_related_to(unit)) {
      std::lock_guard lock(other->mutex);
      reduce_captured(*other);
    }
  }
}

// Whether the current backward reduces the unit's gradients.
bool Engine::syncs(const Unit& unit) const {
  const BackwardOptions& options = reducer_.current();
  return options.requires_gradient_sync && (options.requires_all_reduce || unit.groups().shard);
}

void Engine::reduce_captured(Unit& unit) {
  for (size_t i = 0; i < unit.flat_parameters().size(); ++i) {
    if (FlatGradient* gradient = unit.gradient(i); gradient && gradient->capturing()) {
      reducer_.issue(unit, *gradient);
    }
  }
}

// What a unit has captured by the end of a backward is reduced, together with what earlier ones have left, or kept.
void Engine::end_round(Unit& unit) {
  for (size_t i = 0; i < unit.flat_parameters().size(); ++i) {
    FlatGradient* gradient = unit.gradient(i);
    if (!gradient) {
      continue;
    }
    if (!syncs(unit)) {
      if (gradient->capturing()) {
        gradient->suspend(reducer_.pool());
      }
      continue;
    }
    if (gradient->accumulating() && reducer_.current().requires_all_reduce) {
      gradient->resume(reducer_.pool());
    }
    if (gradient->capturing()) {
      reducer_.issue(unit, *gradient);
    }
  }
}

// When the unit has all its gradients, this backward will hardly use it again.
bool Engine::release_after_backward(Unit& unit) {
  for (size_t i = 0; i < unit.flat_parameters().size(); ++i) {
    FlatGradient* gradient = unit.gradient(i);
    if (gradient && gradient->capturing() && !gradient->complete()) {
      return false;
    }
  }
  if (!unit.gathered() || unit.unsharded_nbytes() == 0 || stays_gathered_after_backward(unit)) {
    return true;
  }
  if (residency_.visited() == &unit && unit.visit.goes_on()) {
    return false;  // frozen parameters are still to be used; leave() releases the unit
  }
  if (unit.pins == 0) {
    release(unit);
  } else {
    unit.release_when_unpinned = true;
  }
  return true;
}

// Between backward passes that do not communicate, units that are not resharded after forward need not be gathered
// anew.
bool Engine::stays_gathered_after_backward(const Unit& unit) const {
  return !reducer_.current().requires_gradient_sync && !reshards_after_forward(unit.options().strategy);
}

void Engine::begin_backward() {
  end_pass(Pass::kForward);
  reducer_.begin_backward();
  notice_cleared_gradients();
  trim_gradients();
}

void Engine::finish_backward() {
  const auto reduce_what_is_left = [this] {
    for (auto& unit : units_) {
      std::lock_guard lock(unit->mutex);
      end_round(*unit);
    }
    compare_reductions();
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

// [Note: two communicators and ranks that differ]
// One communicator compares what its ranks issue, in order. Where reductions have one of their own, a rank could wait
// for a reduction that another one has left out, while that one waits for a gather that the first has not come to:
// neither would see the difference before the timeout. So at the end of backward, before anybody waits for the last
// reductions, ranks compare over the gathers' communicator what they have reduced. Before that, the next reduction
// tells.
void Engine::compare_reductions() {
  if (options_.overlap.one_communicator || !reducer_.current().requires_gradient_sync) {
    return;
  }
  for (Communicator* group : reducing_groups_) {
    group->all_gather_bytes("", {reducer_.describe_backward(), 0, Pass::kReduce});
  }
}

void Engine::end_pass(Pass pass) {
  end_visit();
  residency_.end_pass(pass);
}

// What a backward that threw has left. Reductions on their way are dropped as well: the user may have cleared the
// gradients since.
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
  backward_.observe(shared_from_this());  // what a failed backward has left behind comes before what is cleared now
  for (auto& unit : units_) {
    std::lock_guard lock(unit->mutex);
    unit->check_membership();
    unit->notice_cleared_gradients();
  }
}

}  // namespace fsdp
