// The gradients of one FlatParameter: captured into a flat buffer, reduced over the ranks, added to the gradients of
// the shards.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/stream_order.h"
#include "base/transitions.h"
#include "engine/buffer_pool.h"
#include "engine/engine_streams.h"
#include "engine/held_gradients.h"
#include "engine/leaf_gradients.h"
#include "engine/parameter_mask.h"
#include "engine/shard_groups.h"
#include "engine/unit_state.h"
#include "flat/flat_parameter.h"
#include "fsdp/fully_shard.h"

namespace fsdp {

// Describes how to reduce a captured round.
struct ReduceCall {
  const ShardGroups& groups;
  const EngineStreams& streams;
  double divisor = 1;      // of the sum over all ranks of both groups
  bool all_reduce = true;  // false: a later round reduces over the replicas
  CollectiveId id;
  const CommunicationHook& communication_hook;
  bool sees_norm = false;  // the last stage finds the norm of what it writes: LeafGradients::summary()
};

// A reduction of a gradient buffer over the ranks: one stage, or a reduce-scatter and then an all-reduce.
struct Reduction {
  explicit Reduction(const c10::Stream& first) : stream(first) {}

  c10::Stream stream;      // of the current stage and of later work on its result
  at::Tensor buffer;       // unsharded, reduce dtype
  at::Tensor partial;      // between the stages: laid out like the shard, reduce dtype
  at::Tensor output;       // laid out like the shard, gradient dtype
  ParameterMask captured;  // over all ranks, once the last stage was waited for
  std::unique_ptr<Work> work;
  bool sees_norm = false;
  ReductionSummary summary;  // of the output, once the last stage was waited for

  const Communicator* shard = nullptr;  // the group of its reduce-scatter; null: none
  std::shared_ptr<Communicator> replicate;
  double second_scale = 1;
  bool second_stage_ahead = false;
  bool leaves_out_replicas = false;
  bool carries = false;  // whether it contains gradients of earlier backward passes
};

// Threads: capture(), suspend(), issue() and discard() are called under the unit's lock; issue_second_stage(), finish()
// and drop() are called under the reducer's lock. A lock of its own protects the two sides from each other.
class FlatGradient {
 public:
  // `leaf_source`: provides the memory of the leaves' gradients. If empty, it is allocated on their device.
  FlatGradient(FlatParameter& flat, bool use_orig_params, BufferPool::Source leaf_source,
               std::function<std::string()> where);

  FlatParameter& flat() { return flat_; }
  GradientState state() const { return state_.get(); }
  bool capturing() const { return state_.is(GradientState::kCapturing); }
  bool accumulating() const { return state_.is(GradientState::kAccumulating); }
  // Whether every parameter's gradient has been captured in this backward. This only predicts that no more will come
  // (rule R5).
  bool complete() const { return capturing() && seen_.count() == flat_.layout().num_parameters(); }

  // Captures a gradient on the current stream, after captures on other streams. Before the round has its buffer, holds
  // the gradient ([Note: gradients wait as they came]). If the round has its buffer, or the parameter was captured
  // before in this round, writes the gradient to the buffer, or adds it if the parameter was captured before.
  void capture(int64_t parameter, const at::Tensor& gradient, BufferPool& pool);
  // Keeps the captured gradients for the next backward. Called at the end of a backward that does not reduce.
  void suspend(BufferPool& pool);
  // Whether gradients were captured since take_captured() was called last.
  bool has_captured() const { return any_captured_; }
  bool take_captured() { return std::exchange(any_captured_, false); }
  // Begins a round, or continues a suspended one, so that it can be issued although this backward has captured nothing
  // on this rank. Other ranks have captured gradients.
  void resume(BufferPool& pool);
  // Passes the captured round to the communicator.
  std::unique_ptr<Reduction> issue(const ReduceCall& call, BufferPool& pool);
  // Waits for the first of two stages and issues the second on `stream`. Returns false if no second stage is
  // outstanding.
  bool issue_second_stage(Reduction& reduction, const CollectiveId& id, const c10::Stream& stream, BufferPool& pool);
  // Waits for the reduction, calls `hook`, if any, with the result, and adds the result to the leaves' gradients. Runs
  // on the reduction's stream.
  void finish(Reduction& reduction, const std::function<void(const at::Tensor&)>& hook, BufferPool& pool);
  // Drops the gradients that a backward has captured before it threw. If gradients of earlier passes had been
  // accumulated, they are lost as well, and capture() throws until forget().
  void discard(BufferPool& pool);
  // Drops all accumulated gradients on purpose.
  void forget(BufferPool& pool);
  // Waits for the reduction and drops its result.
  void drop(Reduction& reduction, BufferPool& pool);

  // Clears one parameter's gradient as the optimizer would see it, and the accumulated gradient.
  void clear_leaf(int64_t parameter);
  // Like clear_leaf(), but the gradient stays, as zero.
  void zero_leaf(int64_t parameter);
  const LeafGradients& leaves() const { return leaves_; }
  // See LeafGradients::assign.
  void set_leaf_gradients(const at::Tensor& like_shard, const ParameterMask& defined);
  // Frees the memory of the leaves' gradients if it is not in use.
  void trim();
  // Whether its buffer outlives the buffers of other units, as the root's does, whose gradients come first and last.
  bool stays = false;
  // Bytes of the buffer that a round captures into; 0 if that is the memory of the leaves' gradients.
  int64_t buffer_nbytes() const;
  // Whether it has only one parameter, whose gradient may become the buffer.
  bool may_adopt() const;
  // The last backward in which the user's unit-reduced hook was called. Maintained by the reducer.
  int64_t reported_in_backward = -1;

 private:
  bool replicated() const { return flat_.position().factor == 1; }
  // Must be called before the captured buffer is used or released on the current stream.
  void take_turn() { turns_.take(flat_.compute_device()); }
  void begin_round(BufferPool& pool);
  void end_round();
  void end_reduction(GradientState then);
  // Whether gradients can be captured and reduced in the memory of the leaves' gradients: at all, and now.
  bool may_capture_in_place() const;
  bool captures_in_place() const;
  void give_back(at::Tensor& buffer, BufferPool& pool);
  void take_buffer(BufferPool& pool);
  at::Tensor make_buffer(BufferPool& pool);
  void fill_buffer(BufferPool& pool);
  void write_to_buffer(int64_t parameter, const at::Tensor& gradient, bool add);
  void drop_captured(BufferPool& pool);
  void fill_gaps();
  void issue_reduce_scatter(Reduction& reduction, const ReduceCall& call, BufferPool& pool);
  void issue_all_reduce(Reduction& reduction, const ReduceCall& call, BufferPool& pool);
  void run_hook(Reduction& reduction, const ReduceCall& call, BufferPool& pool);
  at::Tensor make_output(BufferPool& pool, int64_t others_in_flight);
  static ReduceOptions options_of(Reduction& reduction, double scale);
  void zero_accumulated(int64_t parameter);
  void keep_unreplicated(Reduction& reduction, BufferPool& pool);

  std::mutex mutex_;
  FlatParameter& flat_;
  LeafGradients leaves_;
  std::function<std::string()> where_;
  StateMachine<GradientState> state_;
  at::Tensor buffer_;       // of the round, once it is needed
  HeldGradients held_;      // captured, not yet in the buffer
  StreamTurns turns_;       // of captures and of later uses of the buffer
  ParameterMask captured_;  // in this round, which may take several backward passes
  ParameterMask seen_;      // in this backward
  bool any_captured_ = false;
  bool carries_ = false;     // whether the round contains gradients of earlier backward passes
  bool lost_ = false;        // whether such gradients were lost by a backward that threw
  at::Tensor unreplicated_;  // reduced in the shard group only; shard dtype, from the pool
  ParameterMask unreplicated_captured_;
  int64_t in_flight_ = 0;
};

}  // namespace fsdp
