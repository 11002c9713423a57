#include "engine/gradient_reducer.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "torch_seams/clean_dispatch.h"

namespace fsdp::engine {

void GradientReducer::begin_backward() {
  base::MutexLock lock(mutex_);
  current_ = {settings_.backward, settings_.no_sync, settings_.no_all_reduce};
  ++backward_;
  issued_in_backward_ = 0;
  last_issued_ = nullptr;
  transient_.clear();
  if (in_flight_.empty()) reported_.clear();
}

BackwardOptions GradientReducer::current(const Unit& unit) const {
  const auto& [tree, no_sync, no_all_reduce] = current_;
  const UnitSwitches& own = unit.switches();
  return {.requires_gradient_sync = !no_sync && own.requires_gradient_sync.value_or(tree.requires_gradient_sync),
          .requires_all_reduce = !no_all_reduce && own.requires_all_reduce.value_or(tree.requires_all_reduce),
          .is_last_backward = tree.is_last_backward};
}

// ---------------------------------------------------------------- issuing

void GradientReducer::make_room() {
  while (std::optional<InFlight> oldest = take_for_room()) finish(*oldest);
}

std::optional<GradientReducer::InFlight> GradientReducer::take_for_room() {
  base::MutexLock lock(mutex_);
  if (in_flight_.size() > 1 || (!in_flight_.empty() && !advance(in_flight_.back()))) return pop_oldest();
  return std::nullopt;
}

ReduceCall GradientReducer::call_for(Unit& unit) const {
  const ShardGroups& groups = unit.groups();
  const std::optional<double>& own = unit.switches().divide_factor;
  const std::optional<double>& divide_factor = own ? own : settings_.divide_factor;
  return {groups,
          context_.streams,
          divide_factor.value_or(static_cast<double>(groups.ranks())),
          current(unit).requires_all_reduce,
          unit.next_id(Pass::kReduce),
          settings_.communication_hook,
          settings_.sees_norm};
}

void GradientReducer::issue(Unit& unit, FlatGradient& gradient) {
  const ReduceCall call = call_for(unit);
  ++(call.groups.shard ? reduce_scatters_ : all_reduces_);
  int64_t backward = 0;
  {
    base::MutexLock lock(mutex_);
    backward = backward_;
    note_issue(unit, gradient);
  }
  const int64_t issued = trace_.now();
  auto reduction = gradient.issue(call, pool_);
  {
    base::MutexLock lock(mutex_);
    in_flight_.push_back({&unit, &gradient, std::move(reduction), backward, issued});
  }
  trace_.sample_memory();
}

void GradientReducer::note_issue(const Unit& unit, const FlatGradient& gradient) {
  for (const auto& group : {unit.groups().reduce, unit.groups().replicate}) {
    if (group) used_groups_.insert(group);
  }
  ++issued_in_backward_;
  if (!gradient.stays()) {
    if (last_issued_ != &unit || transient_.empty()) transient_.push_back(0);
    transient_.back() += gradient.buffer_nbytes();
  }
  last_issued_ = &unit;
}

// Advances a reduction while the next unit's is issued. Returns false if the reduction must be finished now.
bool GradientReducer::advance(InFlight& latest) {
  if (latest.reduction->stage() == Reduction::Stage::kFirstOfTwo) {
    latest.gradient->issue_second_stage(*latest.reduction, latest.unit->next_id(Pass::kReduce),
                                        context_.streams.all_reduce);
    ++all_reduces_;
    return true;
  }
  if (latest.reduction->over_shard_group()) return false;
  latest.reduction->advance();
  return true;
}

GradientReducer::InFlight GradientReducer::pop_oldest() {
  InFlight oldest = std::move(in_flight_.front());
  in_flight_.pop_front();
  return oldest;
}

std::optional<GradientReducer::InFlight> GradientReducer::take_oldest() {
  base::MutexLock lock(mutex_);
  return in_flight_.empty() ? std::nullopt : std::optional<InFlight>(pop_oldest());
}

// ---------------------------------------------------------------- finishing

void GradientReducer::finish(InFlight& oldest) {
  if (oldest.reduction->stage() == Reduction::Stage::kFirstOfTwo) {
    base::MutexLock lock(mutex_);
    advance(oldest);
  }
  const int64_t waiting = trace_.now();
  oldest.gradient->finish(*oldest.reduction, hook_for(oldest), pool_);
  trace_.record(TraceTrack::kWait, oldest.unit->name(), Pass::kReduce, waiting);
  trace_.record(TraceTrack::kReduce, oldest.unit->name(), Pass::kReduce, oldest.issued);
  trace_.sample_memory();
  oldest.unit->sentinels.install_missing(oldest.gradient->flat(), oldest.reduction->captured());
  if (settings_.unit_reduced_hook && oldest.reduction->stage() != Reduction::Stage::kLeftToLater &&
      oldest.reduction->any()) {
    report_unit(oldest);
  }
}

std::function<void(const at::Tensor&)> GradientReducer::hook_for(const InFlight& reduced) const {
  const bool is_partial = reduced.gradient->flat().is_shared_by_parts();
  if (!is_partial && !settings_.gradient_hook) return {};
  return [this, &reduced, is_partial](const at::Tensor& gradient) {
    if (is_partial) {
      seams::CleanDispatchGuard clean;
      context_.options.exchange->add_up(gradient, "unit " + reduced.unit->name(), Pass::kReduce);
    }
    if (!settings_.gradient_hook) return;
    std::vector<std::string> fqns;
    for (const flat::ShardedParameter& parameter : reduced.gradient->flat().parameters()) fqns.push_back(parameter.fqn);
    settings_.gradient_hook({reduced.unit->name(), fqns, gradient});
  };
}

void GradientReducer::report_unit(InFlight& finished) {
  int64_t before = 0;
  {
    base::MutexLock lock(mutex_);
    before = std::exchange(reported_[finished.gradient], finished.backward);
  }
  TORCH_CHECK(before != finished.backward, "fsdp: ", finished.unit->where(),
              ": more gradients arrived after the unit-reduced hook had been called for this unit in the same backward "
              "(parameters used again by units that come earlier in forward): its optimizer has stepped too early. Put "
              "the modules that share these parameters into one unit, or step after backward");
  base::CurrentStreamGuard on_stream(finished.reduction->stream());
  settle_on_host();
  settings_.unit_reduced_hook(finished.unit->name(), finished.gradient->leaves().leaves());
  finished.gradient->trim();
}

void GradientReducer::finish_all() {
  {
    base::MutexLock lock(mutex_);
    for (InFlight& one : in_flight_) advance(one);
  }
  while (std::optional<InFlight> oldest = take_oldest()) finish(*oldest);
  context_.streams.await_reductions();
  settle_on_host();
  trim_groups();
}

// The contributions of other ranks are not needed until the next backward.
void GradientReducer::trim_groups() {
  std::set<std::shared_ptr<Communicator>> groups;
  {
    base::MutexLock lock(mutex_);
    groups.swap(used_groups_);
  }
  if (!pool_.keeps_memory()) {
    for (const auto& group : groups) group->trim();
  }
}

// After this returns, gradients are in host memory and all reads of shards in host memory are done, so an optimizer may
// write the shards.
void GradientReducer::settle_on_host() const {
  if (!context_.options.memory.apart()) return;
  const EngineStreams& streams = context_.streams;
  for (const c10::Stream& stream : {streams.gather, streams.reduce, streams.all_reduce}) {
    base::DeviceEvent done;
    done.record(stream);
    done.synchronize();
  }
}

void GradientReducer::discard_current() {
  int64_t current = 0;
  {
    base::MutexLock lock(mutex_);
    current = backward_;
  }
  while (std::optional<InFlight> oldest = take_oldest()) {
    if (oldest->backward == current) {
      oldest->gradient->discard(*oldest->reduction);
    } else {
      finish(*oldest);
    }
  }
}

// ---------------------------------------------------------------- words and numbers

std::string GradientReducer::describe_backward() const {
  base::MutexLock lock(mutex_);
  const std::string last = last_issued_ ? c10::str(", the last one of '", last_issued_->name(), "'") : "";
  return c10::str("end of backward after ", issued_in_backward_, " reductions", last);
}

// Counts the unit being captured and the units in flight: [Note: reductions in flight].
int64_t GradientReducer::largest_window() const {
  base::MutexLock lock(mutex_);
  const size_t window = all_reduces_ > 0 ? 3 : 2;
  int64_t most = 0, sum = 0;
  for (size_t i = 0; i < transient_.size(); ++i) {
    sum += transient_[i] - (i >= window ? transient_[i - window] : 0);
    most = std::max(most, sum);
  }
  return most;
}

void GradientReducer::count(EngineStats& stats) const {
  stats.reduce_scatters = reduce_scatters_;
  stats.all_reduces = all_reduces_;
}

}  // namespace fsdp::engine
