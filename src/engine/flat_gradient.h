// The gradients of one FlatParameter: captured, reduced over the ranks, added to the gradients of the leaves.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "base/mutex.h"
#include "base/transitions.h"
#include "engine/captured_gradients.h"
#include "engine/leaf_gradients.h"
#include "engine/reduction.h"
#include "engine/unit_state.h"
#include "engine/unreplicated_sum.h"
#include "flat/flat_parameter.h"

namespace fsdp::engine {

// Its states are those of the round: GradientState.
//
// Threads: safe. Captures are made under the unit's lock, issue_second_stage() is called under the reducer's. resume(),
// issue(), finish() and discard() need no lock; any thread may call clear_leaf() and zero_leaf().
class FlatGradient {
 public:
  // `leaf_source`: provides the memory of the leaves' gradients. If empty, it is allocated on their device.
  FlatGradient(flat::FlatParameter& flat, bool use_orig_params, BufferPool::Source leaf_source,
               std::function<std::string()> where);

  flat::FlatParameter& flat() { return flat_; }
  bool capturing() const { return state_.is(GradientState::kCapturing); }
  bool accumulating() const { return state_.is(GradientState::kAccumulating); }
  // Whether every parameter's gradient has been captured in this backward. This only predicts that no more will come
  // (rule R5).
  bool complete() const FSDP_EXCLUDES(mutex_);

  // -- this rank's gradients --
  // Captures a gradient of one parameter. See CapturedGradients.
  void capture(int64_t parameter, const at::Tensor& gradient, BufferPool& pool) FSDP_EXCLUDES(mutex_);
  // Whether gradients were captured since take_captured() was called last.
  bool has_captured() const { return any_captured_; }
  bool take_captured() { return any_captured_.exchange(false); }
  // Keeps the captured gradients for the next backward. Called at the end of a backward that does not reduce.
  void suspend(BufferPool& pool) FSDP_EXCLUDES(mutex_);
  // Begins a round, or continues a suspended one, if none is under way, so that it can be issued although this backward
  // has captured nothing on this rank. Other ranks have captured gradients.
  void resume(BufferPool& pool) FSDP_EXCLUDES(mutex_);
  // Discards the gradients that a backward has captured before it threw. If gradients of earlier passes had been
  // accumulated, they are lost as well, and capture() throws until discard_accumulated().
  void discard_captures(BufferPool& pool) FSDP_EXCLUDES(mutex_);
  // Discards all accumulated gradients.
  void discard_accumulated(BufferPool& pool) FSDP_EXCLUDES(mutex_);

  // -- reductions --
  // Passes the round to the communicator, or to the call's hook, without holding its lock.
  std::unique_ptr<Reduction> issue(const ReduceCall& call, BufferPool& pool) FSDP_EXCLUDES(mutex_);
  // Waits for the first of two stages and issues the second on `stream`. Returns false if no second stage is
  // outstanding.
  bool issue_second_stage(Reduction& reduction, const CollectiveId& id, const c10::Stream& stream)
      FSDP_EXCLUDES(mutex_);
  // Waits for the reduction, calls `hook`, if any, with the result, and adds the result to the leaves' gradients. Runs
  // on the reduction's stream.
  void finish(Reduction& reduction, const std::function<void(const at::Tensor&)>& hook, BufferPool& pool)
      FSDP_EXCLUDES(mutex_);
  // Waits for the reduction and discards its result.
  void discard(Reduction& reduction) FSDP_EXCLUDES(mutex_);

  // -- the gradients of the leaves --
  // Clears one parameter's gradient as the optimizer would see it, and the accumulated gradient.
  void clear_leaf(int64_t parameter) FSDP_EXCLUDES(mutex_);
  // Like clear_leaf(), but the gradient stays, as zero.
  void zero_leaf(int64_t parameter) FSDP_EXCLUDES(mutex_);
  const LeafGradients& leaves() const { return leaves_; }
  // See LeafGradients::assign.
  void set_leaf_gradients(const at::Tensor& like_shard, const ParameterMask& defined) FSDP_EXCLUDES(mutex_);
  // Releases the memory of the leaves' gradients if it is not in use.
  void trim() FSDP_EXCLUDES(mutex_);

  // -- the buffer of a round; see CapturedGradients --
  bool stays() const { return round_.stays(); }
  void set_stays(bool on) { round_.set_stays(on); }
  int64_t buffer_nbytes() const { return round_.buffer_nbytes(); }
  bool may_adopt() const { return round_.may_adopt(); }

 private:
  CapturedGradients::Memory memory_of_round(BufferPool& pool) FSDP_REQUIRES(mutex_);
  void begin_round(BufferPool& pool) FSDP_REQUIRES(mutex_);
  std::unique_ptr<Reduction> begin_reduction(const ReduceCall& call, BufferPool& pool) FSDP_EXCLUDES(mutex_);
  void end_reduction(GradientState then) FSDP_REQUIRES(mutex_);
  // Ends a reduction that has failed. Its gradients are lost.
  void end_failed(const Reduction& reduction) FSDP_REQUIRES(mutex_);
  // Takes over the result. Returns the state that follows.
  GradientState take_result(Reduction& reduction, bool seen_by_hook, BufferPool& pool) FSDP_REQUIRES(mutex_);

  mutable base::Mutex mutex_;
  flat::FlatParameter& flat_;
  const std::function<std::string()> where_;
  base::StateMachine<GradientState> state_;  // transitions under the lock
  LeafGradients leaves_;
  CapturedGradients round_;
  UnreplicatedSum unreplicated_ FSDP_GUARDED_BY(mutex_);
  bool lost_ FSDP_GUARDED_BY(mutex_) = false;  // whether accumulated gradients were lost by a backward that threw
  int64_t in_flight_ FSDP_GUARDED_BY(mutex_) = 0;
  std::atomic<bool> any_captured_{false};
};

}  // namespace fsdp::engine
