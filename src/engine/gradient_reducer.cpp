#include "engine/gradient_reducer.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <utility>

namespace fsdp {

void GradientReducer::begin_backward() {
  std::lock_guard lock(mutex_);
  current_ = options;
  ++backward_;
  issued_in_backward_ = 0;
  last_issued_ = nullptr;
  passing_.clear();
}

void GradientReducer::issue(Unit& unit, FlatGradient& gradient) {
  std::lock_guard lock(mutex_);
  while (in_flight_.size() > 1) {
    InFlight oldest = take_oldest();
    finish(oldest);
  }
  if (!in_flight_.empty() && !advance(in_flight_.back())) {
    InFlight oldest = take_oldest();
    finish(oldest);
  }
  const ShardGroups& groups = unit.groups();
  ReduceCall call{groups,
                  streams_,
                  divide_factor.value_or(static_cast<double>(groups.ranks())),
                  current_.requires_all_reduce,
                  unit.next_id(Pass::kReduce),
                  communication_hook,
                  sees_norm};
  ++(groups.shard ? reduce_scatters_ : all_reduces_);
  for (const auto& group : {groups.reduce, groups.replicate}) {
    if (group) {
      used_groups_.insert(group);
    }
  }
  note_issue(unit, gradient);
  int64_t issued = trace_.now();
  in_flight_.push_back({&unit, &gradient, gradient.issue(call, pool_), backward_, issued});
  trace_.sample_memory();
}

void GradientReducer::note_issue(const Unit& unit, const FlatGradient& gradient) {
  ++issued_in_backward_;
  if (!gradient.stays) {
    if (last_issued_ != &unit || passing_.empty()) {
      passing_.push_back(0);
    }
    passing_.back() += gradient.buffer_nbytes();
  }
  last_issued_ = &unit;
}

// Counts the unit being captured and the units in flight: [Note: reductions in flight].
int64_t GradientReducer::passing_nbytes() const {
  size_t window = all_reduces_ > 0 ? 3 : 2;
  int64_t most = 0, sum = 0;
  for (size_t i = 0; i < passing_.size(); ++i) {
    sum += passing_[i] - (i >= window ? passing_[i - window] : 0);
    most = std::max(most, sum);
  }
  return most;
}

std::string GradientReducer::describe_backward() const {
  std::string last = last_issued_ ? c10::str(", the last one of '", last_issued_->name(), "'") : "";
  return c10::str("end of backward after ", issued_in_backward_, " reductions", last);
}

// Advances a reduction while the next unit's is issued. Returns false if the reduction must be finished now.
bool GradientReducer::advance(InFlight& latest) {
  if (latest.gradient->issue_second_stage(*latest.reduction, latest.unit->next_id(Pass::kReduce), streams_.all_reduce,
                                          pool_)) {
    ++all_reduces_;
    return true;
  }
  if (latest.reduction->shard) {
    return false;
  }
  latest.reduction->work->advance();
  return true;
}

GradientReducer::InFlight GradientReducer::take_oldest() {
  InFlight oldest = std::move(in_flight_.front());
  in_flight_.pop_front();
  return oldest;
}

void GradientReducer::finish(InFlight& oldest) {
  if (oldest.reduction->second_stage_ahead) {
    advance(oldest);
  }
  std::function<void(const at::Tensor&)> hook;
  if (gradient_hook) {
    hook = [&](const at::Tensor& gradient) {
      std::vector<std::string> fqns;
      for (const ShardedParameter& parameter : oldest.gradient->flat().parameters()) {
        fqns.push_back(parameter.fqn);
      }
      gradient_hook({oldest.unit->name(), fqns, gradient});
    };
  }
  int64_t waiting = trace_.now();
  oldest.gradient->finish(*oldest.reduction, hook, pool_);
  trace_.record(TraceTrack::kWait, oldest.unit->name(), Pass::kReduce, waiting);
  trace_.record(TraceTrack::kReduce, oldest.unit->name(), Pass::kReduce, oldest.issued);
  trace_.sample_memory();
  oldest.unit->show_gradients(*oldest.gradient, oldest.reduction->captured);
  if (unit_reduced_hook && !oldest.reduction->leaves_out_replicas && oldest.reduction->captured.count() > 0) {
    unit_reduced(oldest);
  }
}

void GradientReducer::unit_reduced(InFlight& finished) {
  int64_t& last = finished.gradient->reported_in_backward;
  TORCH_CHECK(last != finished.backward, "fsdp: ", finished.unit->where(),
              ": more gradients arrived after the unit-reduced hook had been called for this unit in the same backward "
              "(parameters used again by units that come earlier in forward): its optimizer has stepped too early. Put "
              "the modules that share these parameters into one unit, or step after backward");
  last = finished.backward;
  CurrentStreamGuard on_stream(finished.reduction->stream);
  settle_on_host();
  unit_reduced_hook(finished.unit->name(), finished.gradient->leaves().leaves());
  finished.gradient->trim();
}

void GradientReducer::finish_all() {
  std::lock_guard lock(mutex_);
  for (InFlight& one : in_flight_) {
    advance(one);
  }
  while (!in_flight_.empty()) {
    InFlight oldest = take_oldest();
    finish(oldest);
  }
  streams_.await_reductions();
  settle_on_host();
  trim_groups();
}

// The contributions of other ranks are not needed until the next backward.
void GradientReducer::trim_groups() {
  if (!pool_.keeps_memory()) {
    for (const auto& group : used_groups_) {
      group->trim();
    }
  }
  used_groups_.clear();
}

// After this returns, gradients are in host memory and all reads of shards in host memory are done, so an optimizer may
// write the shards.
void GradientReducer::settle_on_host() const {
  if (!to_host_) {
    return;
  }
  for (const c10::Stream& stream : {streams_.gather, streams_.reduce, streams_.all_reduce}) {
    DeviceEvent done;
    done.record(stream);
    done.synchronize();
  }
}

void GradientReducer::drop_current() {
  std::lock_guard lock(mutex_);
  while (!in_flight_.empty()) {
    InFlight oldest = take_oldest();
    if (oldest.backward == backward_) {
      oldest.gradient->drop(*oldest.reduction, pool_);
    } else {
      finish(oldest);
    }
  }
}

}  // namespace fsdp
