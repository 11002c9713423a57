#include "engine/flat_gradient.h"

#include <optional>
#include <utility>

#include "torch_seams/clean_dispatch.h"
#include "torch_seams/dispatch_key.h"

namespace fsdp::engine {

FlatGradient::FlatGradient(flat::FlatParameter& flat, bool use_orig_params, BufferPool::Source leaf_source,
                           std::function<std::string()> where)
    : flat_(flat),
      where_(std::move(where)),
      state_(GradientState::kNone, gradient_transitions()),
      leaves_(flat, use_orig_params, std::move(leaf_source)),
      round_(flat, leaves_),
      unreplicated_(flat) {}

// ---------------------------------------------------------------- this rank's gradients

CapturedGradients::Memory FlatGradient::memory_of_round(BufferPool& pool) {
  return {pool, round_.may_use_leaves() && !round_.has_buffer() && in_flight_ == 0 && !leaves_.any()};
}

void FlatGradient::begin_round(BufferPool& pool) {
  state_.transition(GradientState::kCapturing, where_);
  round_.begin(memory_of_round(pool));
}

bool FlatGradient::complete() const {
  base::MutexLock lock(mutex_);
  return capturing() && round_.complete();
}

void FlatGradient::capture(int64_t parameter, const at::Tensor& gradient, BufferPool& pool) {
  const bool shared = gradient.use_count() > 1 && !gradient.is_sparse();
  const at::Tensor dense = gradient.is_sparse() ? gradient.to_dense() : gradient;
  base::MutexLock lock(mutex_);
  TORCH_CHECK(!lost_, "fsdp: ", where_(),
              ": a backward threw while gradients of several passes were being accumulated; ",
              "the gradient that earlier passes had accumulated for parameter '", flat_.parameters()[parameter].fqn,
              "' was lost. Call ShardedModule::zero_grad (or reset) and begin the step again");
  if (!capturing()) begin_round(pool);
  // A gradient may itself be a view of a sharded parameter. The dispatcher must then see the parameter's unit.
  std::optional<seams::CleanDispatchGuard> clean;
  if (!seams::has_sharded_key(dense)) clean.emplace();
  any_captured_ = true;
  round_.capture(parameter, dense, shared, memory_of_round(pool));
}

void FlatGradient::suspend(BufferPool& pool) {
  seams::CleanDispatchGuard clean;
  base::MutexLock lock(mutex_);
  round_.suspend(memory_of_round(pool));
  state_.transition(GradientState::kAccumulating, where_);
}

void FlatGradient::resume(BufferPool& pool) {
  base::MutexLock lock(mutex_);
  if (!capturing()) begin_round(pool);
}

void FlatGradient::discard_captures(BufferPool& pool) {
  base::MutexLock lock(mutex_);
  any_captured_ = false;
  if (capturing()) {
    state_.transition(GradientState::kNone, where_);
    lost_ |= round_.carries() || unreplicated_.any();
    round_.discard(pool);
  }
}

void FlatGradient::discard_accumulated(BufferPool& pool) {
  base::MutexLock lock(mutex_);
  if (accumulating()) {
    state_.transition(GradientState::kNone, where_);
    round_.discard(pool);
  }
  unreplicated_.release(pool);
  lost_ = false;
}

// ---------------------------------------------------------------- reductions

std::unique_ptr<Reduction> FlatGradient::issue(const ReduceCall& call, BufferPool& pool) {
  TORCH_CHECK(!call.communication_hook || call.all_reduce || !call.groups.replicate, "fsdp: ", where_(),
              ": requires_all_reduce = false cannot be combined with a communication hook, which does the whole "
              "reduction itself");
  auto reduction = begin_reduction(call, pool);
  base::CurrentStreamGuard on_stream(reduction->stream());
  try {
    reduction->issue(call);
  } catch (...) {
    base::MutexLock lock(mutex_);
    end_failed(*reduction);
    throw;
  }
  return reduction;
}

std::unique_ptr<Reduction> FlatGradient::begin_reduction(const ReduceCall& call, BufferPool& pool) {
  seams::CleanDispatchGuard clean;
  base::MutexLock lock(mutex_);
  round_.fill_buffer(memory_of_round(pool));
  base::CurrentStreamGuard on_stream(call.first_stream());
  auto reduction = std::make_unique<Reduction>(flat_, leaves_, round_.take(), call, pool);
  state_.transition(GradientState::kReducing, where_);
  ++in_flight_;
  try {
    reduction->take_memory(call, /*alone=*/in_flight_ == 1);
  } catch (...) {
    reduction->release_inputs();
    end_failed(*reduction);
    throw;
  }
  return reduction;
}

// Memory of a collective that failed is not used again, because the collective may still write to it.
void FlatGradient::end_failed(const Reduction& reduction) {
  lost_ |= reduction.carries() || unreplicated_.any();
  if (!leaves_.any()) leaves_.release_memory();
  end_reduction(GradientState::kReduced);
}

bool FlatGradient::issue_second_stage(Reduction& reduction, const CollectiveId& id, const c10::Stream& stream) {
  if (reduction.stage() != Reduction::Stage::kFirstOfTwo) return false;
  base::CurrentStreamGuard on_stream(stream);
  reduction.await_first_stage(stream);
  {
    seams::CleanDispatchGuard clean;
    base::MutexLock lock(mutex_);
    reduction.begin_second_stage(unreplicated_, /*alone=*/in_flight_ == 1);
  }
  reduction.issue_second_stage(id);
  return true;
}

void FlatGradient::finish(Reduction& reduction, const std::function<void(const at::Tensor&)>& hook, BufferPool& pool) {
  base::CurrentStreamGuard on_stream(reduction.stream());
  try {
    reduction.wait();
    if (hook && reduction.any() && reduction.stage() != Reduction::Stage::kLeftToLater) hook(reduction.output());
  } catch (...) {
    base::MutexLock lock(mutex_);
    end_failed(reduction);
    throw;
  }
  seams::CleanDispatchGuard clean;
  base::MutexLock lock(mutex_);
  reduction.release_inputs();
  end_reduction(take_result(reduction, /*seen_by_hook=*/static_cast<bool>(hook), pool));
}

GradientState FlatGradient::take_result(Reduction& reduction, bool seen_by_hook, BufferPool& pool) {
  if (!reduction.any()) {
    reduction.release_output();
    return unreplicated_.any() ? GradientState::kAccumulating : GradientState::kReduced;
  }
  if (reduction.stage() == Reduction::Stage::kLeftToLater) {
    unreplicated_.add(reduction.output(), reduction.captured(), pool);
    return GradientState::kAccumulating;
  }
  const bool all_there_is = !leaves_.any() && !seen_by_hook;
  leaves_.add(reduction.output(), reduction.captured());
  if (all_there_is) leaves_.note(reduction.summary());
  reduction.release_output();
  return GradientState::kReduced;
}

void FlatGradient::end_reduction(GradientState then) {
  --in_flight_;
  if (state_.is(GradientState::kReducing) && in_flight_ == 0) state_.transition(then, where_);
}

void FlatGradient::discard(Reduction& reduction) {
  base::CurrentStreamGuard on_stream(reduction.stream());
  base::MutexLock lock(mutex_);
  lost_ |= reduction.carries() || unreplicated_.any();
  end_reduction(GradientState::kReduced);
  if (reduction.in_progress()) reduction.wait();
  reduction.release_inputs();
  reduction.release_output();
}

// ---------------------------------------------------------------- the gradients of the leaves

void FlatGradient::trim() {
  base::MutexLock lock(mutex_);
  if (in_flight_ == 0 && !round_.has_buffer() && !leaves_.any()) leaves_.release_memory();
}

void FlatGradient::set_leaf_gradients(const at::Tensor& like_shard, const ParameterMask& defined) {
  base::MutexLock lock(mutex_);
  leaves_.assign(like_shard, defined);
}

void FlatGradient::clear_leaf(int64_t parameter) {
  seams::CleanDispatchGuard clean;
  base::MutexLock lock(mutex_);
  if (accumulating()) {
    round_.clear(parameter);
    unreplicated_.clear(parameter);
  }
  leaves_.clear(parameter);
}

void FlatGradient::zero_leaf(int64_t parameter) {
  seams::CleanDispatchGuard clean;
  base::MutexLock lock(mutex_);
  if (accumulating()) {
    round_.zero(parameter);
    unreplicated_.zero(parameter);
  }
  leaves_.zero(parameter);
}

}  // namespace fsdp::engine
