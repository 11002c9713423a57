#include "engine/gradient_flow.h"

#include <algorithm>
#include <functional>

#include "engine/membership.h"
#include "torch_seams/gradient_hooks.h"
#include "torch_seams/graph_recording.h"

namespace fsdp::engine {

using schedule::ScheduledUnit;

GradientFlow::GradientFlow(const UnitContext& context, UnitTree& tree, MemoryAccount& memory,
                           base::TraceRecorder& trace)
    : context_(context),
      tree_(tree),
      pool_(memory.gradients()),
      keeps_memory_(context.options.keep_memory),
      trace_(trace),
      reducer_(context, pool_, trace) {}

void GradientFlow::make_groups() {
  groups_.clear();
  const auto add = [this](const std::shared_ptr<Communicator>& group) {
    const bool known = std::find(groups_.begin(), groups_.end(), group.get()) != groups_.end();
    if (group && group->size() > 1 && !known) groups_.push_back(group.get());
  };
  for (const auto& unit : tree_.units()) {
    if (const std::shared_ptr<Communicator>& group = unit->groups().shard; group && unit->flat_parameters().trains()) {
      unit->set_reduce_group(context_.options.overlap.one_communicator ? group : group->twin());
      add(group);
    }
  }
  for (const auto& unit : tree_.units()) {
    if (unit->flat_parameters().trains()) add(unit->groups().replicate);
  }
  tree_.for_each_gradient([](const Unit& unit, FlatGradient& gradient) { gradient.set_stays(unit.is_root()); });
}

// ---------------------------------------------------------------- uses and captures

void GradientFlow::note_use(Unit& unit) {
  if (!seams::in_backward() && seams::records_graph()) order_.note_forward(unit);
}

bool GradientFlow::capture(Unit& unit, int64_t index, const at::Tensor& gradient) {
  base::MutexLock lock(unit.mutex);
  const Unit::Place place = unit.place(index);
  check_membership(unit, place.flat.parameters()[place.parameter]);
  if (!gradient.defined()) return false;
  const bool is_first = !place.gradient->capturing();
  place.gradient->capture(place.parameter, gradient, pool_);
  if (is_first) trace_.sample_memory();
  unit.sentinels.install(place.flat, place.parameter);
  return unit.gradients().complete();
}

// [Note: when gradients are reduced]
// The order is fixed ([Note: the order of reductions]). A unit's turn comes when an operator uses an unrelated unit,
// which is also the point where the Gatherer releases the first unit. If no operator has used the unrelated unit just
// before (the first layer's weight is not used in backward if the input needs no gradient), the turn comes when the
// first gradient of the unrelated unit arrives. Otherwise it comes at the end of backward. It does not come when the
// last of the unit's gradients arrives, because some of its parameters may take no part on this rank.
void GradientFlow::reduce_before(Unit& unit) {
  if (!seams::in_backward()) return;
  const auto captures = [](const ScheduledUnit& other) { return as_unit(other).gradients().capturing(); };
  for (ScheduledUnit* due : order_.due(unit, captures)) reduce(as_unit(*due));
}

bool GradientFlow::syncs(const Unit& unit) const {
  const BackwardOptions options = reducer_.current(unit);
  return options.requires_gradient_sync && (options.requires_all_reduce || unit.groups().shard);
}

bool GradientFlow::syncs_any() const {
  return std::any_of(tree_.units().begin(), tree_.units().end(),
                     [this](const auto& unit) { return reducer_.current(*unit).requires_gradient_sync; });
}

// Reduces all of the unit's gradients, as other ranks do.
void GradientFlow::reduce(Unit& unit) {
  for (size_t i = 0; i < unit.flat_parameters().size(); ++i) {
    if (FlatGradient* gradient = unit.gradients().of(i)) reduce(unit, *gradient);
  }
}

void GradientFlow::reduce(Unit& unit, FlatGradient& gradient) {
  reducer_.make_room();
  gradient.resume(pool_);
  reducer_.issue(unit, gradient);
}

// ---------------------------------------------------------------- passes

void GradientFlow::begin_backward() {
  reducer_.begin_backward();
  order_.begin_backward([this](const ScheduledUnit& scheduled) {
    const Unit& unit = as_unit(scheduled);
    return unit.flat_parameters().trains() && syncs(unit);
  });
  notice_cleared();
  trim();
}

void GradientFlow::finish_backward() {
  suspend_what_stays();
  if (syncs_any()) reduce_the_rest();
  if (reducer_.is_last_backward()) reducer_.finish_all();
}

void GradientFlow::suspend_what_stays() {
  tree_.for_each_gradient([this](const Unit& unit, FlatGradient& gradient) {
    if (gradient.capturing() && !syncs(unit)) gradient.suspend(pool_);
  });
}

namespace {

// Bits for one FlatParameter's gradients on a rank at the end of a backward.
constexpr char kCaptured = 1;  // this backward has captured some
constexpr char kLeft = 2;      // some are not being reduced yet

}  // namespace

// If a backward has captured nothing on this rank, it is a backward of autograd::grad, on all ranks.
void GradientFlow::reduce_the_rest() {
  bool any_here = false;
  tree_.for_each_gradient([&](const Unit& unit, FlatGradient& gradient) {
    any_here |= gradient.has_captured() || gradient.capturing() || (gradient.accumulating() && syncs(unit));
  });
  if (any_here) {
    for (ScheduledUnit* unit : order_.rest()) reduce(as_unit(*unit));
  }
  const std::string found = agree_on_gradients();
  const bool any_anywhere = found.find_first_not_of('\0') != std::string::npos;
  size_t next = 0;
  for (const auto& unit : tree_.units()) {
    bool captured = false;
    for (size_t i = 0; i < unit->flat_parameters().size(); ++i) {
      FlatGradient* gradient = unit->gradients().of(i);
      if (!gradient) continue;
      captured |= (found[next] & kCaptured) != 0;
      if ((found[next++] & kLeft) != 0 && syncs(*unit)) reduce(*unit, *gradient);
    }
    if (any_anywhere) order_.note_captured(*unit, captured);
  }
}

// [Note: two communicators and ranks that differ]
// One communicator compares what its ranks issue, in order. If reductions have a communicator of their own, a rank
// could wait for a reduction that another rank has left out, while that rank waits for a gather that the first one has
// not reached. Neither would see the difference before the timeout. Therefore, at the end of backward, before any rank
// waits for the last reductions, ranks compare over the gathers' communicator which reductions they have issued, and
// tell each other which gradients are left. Before the end of backward, the next reduction reveals the difference.
std::string GradientFlow::agree_on_gradients() {
  std::string found;
  tree_.for_each_gradient([&](const Unit& unit, FlatGradient& gradient) {
    const bool waits = gradient.accumulating() && reducer_.current(unit).requires_all_reduce;
    const bool left = syncs(unit) && (gradient.capturing() || waits);
    found += static_cast<char>((gradient.take_captured() ? kCaptured : 0) | (left ? kLeft : 0));
  });
  for (Communicator* group : groups_) {
    for (const std::string& theirs : group->all_gather_bytes(found, {reducer_.describe_backward(), 0, Pass::kReduce})) {
      TORCH_CHECK(theirs.size() == found.size(), "fsdp: ", context_.where(), ": another rank has ", theirs.size(),
                  " FlatParameters with gradients, this one ", found.size());
      std::transform(found.begin(), found.end(), theirs.begin(), found.begin(), std::bit_or<char>());
    }
  }
  return found;
}

bool GradientFlow::stays_gathered_after_backward(const Unit& unit) const {
  return unit.stays_after_backward() ||
         (!reducer_.current(unit).requires_gradient_sync && !reshards_after_forward(unit.options().strategy));
}

void GradientFlow::discard_captures() {
  reducer_.discard_current();
  tree_.for_each_gradient([this](const Unit&, FlatGradient& gradient) { gradient.discard_captures(pool_); });
}

// ---------------------------------------------------------------- the user's gradients

void GradientFlow::notice_cleared() const {
  for (const auto& unit : tree_.units()) {
    base::MutexLock lock(unit->mutex);
    check_membership(*unit);
    unit->gradients().notice_cleared();
  }
}

void GradientFlow::settle() {
  notice_cleared();
  reducer_.finish_all();
}

void GradientFlow::discard_accumulated() {
  reducer_.finish_all();
  tree_.for_each_gradient([this](const Unit&, FlatGradient& gradient) { gradient.discard_accumulated(pool_); });
}

void GradientFlow::trim() const {
  if (!keeps_memory_) tree_.for_each_kept_gradient([](const Unit&, FlatGradient& gradient) { gradient.trim(); });
}

}  // namespace fsdp::engine
