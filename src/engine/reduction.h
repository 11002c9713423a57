// The gradients of one FlatParameter: captured into a flat buffer, reduced over the ranks, added to the shards'.
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

// How a captured round is to be reduced.
struct ReduceCall {
  const ShardGroups& groups;
  const EngineStreams& streams;
  double divisor = 1;      // of the sum over all ranks of both groups
  bool all_reduce = true;  // false: leave the replicas to a later round
  CollectiveId id;
  const CommunicationHook& communication_hook;
  bool sees_norm = false;  // the last stage sees the norm of what it writes: LeafGradients::summary()
};

// A gradient buffer on its way over the ranks: one stage, or a reduce-scatter and then an all-reduce.
struct Reduction {
  explicit Reduction(const c10::Stream& first) : stream(first) {}

  c10::Stream stream;      // where its present stage runs, and what becomes of its outcome
  at::Tensor buffer;       // unsharded, reduce dtype
  at::Tensor partial;      // between the stages: laid out like the shard, reduce dtype
  at::Tensor output;       // laid out like the shard, gradient dtype
  ParameterMask captured;  // over all ranks, once the last stage was waited for
  std::unique_ptr<Work> work;
  bool sees_norm = false;
  ReductionSummary summary;  // of the output, once the last stage was waited for

  const Communicator* shard = nullptr;  // where it is reduce-scattered; null: it is not
  std::shared_ptr<Communicator> replicate;
  double second_scale = 1;
  bool second_stage_ahead = false;
  bool leaves_out_replicas = false;
  bool carries = false;  // something of earlier backward passes
};

// Threads: capture(), suspend(), issue() and discard() under the unit's lock, the others under the reducer's; a lock of
// its own keeps the two sides apart.
class FlatGradient {
 public:
  // `leaf_source`: where the memory of the leaves' gradients comes from; empty: from their device.
  FlatGradient(FlatParameter& flat, bool use_orig_params, BufferPool::Source leaf_source,
               std::function<std::string()> where);

  FlatParameter& flat() { return flat_; }
  GradientState state() const { return state_.get(); }
  bool capturing() const { return state_.is(GradientState::kCapturing); }
  bool accumulating() const { return state_.is(GradientState::kAccumulating); }
  // Whether every parameter has been captured in this backward. Only a prediction that no more will come (rule R5).
  bool complete() const { return capturing() && seen_.count() == flat_.layout().num_parameters(); }

  // Holds a gradient for the buffer; writes it there, or adds it when its parameter was captured before in this round,
  // where the round has its buffer: [Note: gradients wait as they came]. On the current stream, behind captures on
  // others.
  void capture(int64_t parameter, const at::Tensor& gradient, BufferPool& pool);
  // A backward has ended that does not reduce: what was captured stays for the next one.
  void suspend(BufferPool& pool);
  // Whether gradients were captured since take_captured() was called last.
  bool has_captured() const { return any_captured_; }
  bool take_captured() { return std::exchange(any_captured_, false); }
  // Begins a round, or goes on with a suspended one, although this backward has captured nothing, so that it can be
  // issued: other ranks have.
  void resume(BufferPool& pool);
  // Hands the captured round to the communicator.
  std::unique_ptr<Reduction> issue(const ReduceCall& call, BufferPool& pool);
  // Waits for the first of two stages and issues the second, on `stream`. False when no second stage is ahead.
  bool issue_second_stage(Reduction& reduction, const CollectiveId& id, const c10::Stream& stream, BufferPool& pool);
  // Waits; calls `hook`, if any, on what came; adds it to the leaves' gradients. On the reduction's stream.
  void finish(Reduction& reduction, const std::function<void(const at::Tensor&)>& hook, BufferPool& pool);
  // A backward threw: drops what it has captured. When earlier passes had been accumulated, these are lost with it, and
  // capture() throws until forget().
  void discard(BufferPool& pool);
  // Drops everything that was accumulated, on purpose.
  void forget(BufferPool& pool);
  // Waits, and drops what comes.
  void drop(Reduction& reduction, BufferPool& pool);

  // Clears what the optimizer would see of one parameter's gradient, and what was accumulated of it.
  void clear_leaf(int64_t parameter);
  // The same, but the gradient stays, as zero.
  void zero_leaf(int64_t parameter);
  const LeafGradients& leaves() const { return leaves_; }
  // See LeafGradients::assign.
  void set_leaf_gradients(const at::Tensor& like_shard, const ParameterMask& defined);
  // Gives memory of gradients back that nobody holds any more.
  void trim();
  // Whether its buffer outlives those of other units, as the root's does: its gradients come first and last.
  bool stays = false;
  // Bytes of the buffer that a round captures into; 0 where that is the leaves' memory.
  int64_t buffer_nbytes() const;
  // Whether the gradient of its only parameter may become the buffer.
  bool may_adopt() const;
  // The last backward in which the user's unit-reduced hook was called; the reducer's to keep.
  int64_t reported_in_backward = -1;

 private:
  bool replicated() const { return flat_.position().factor == 1; }
  // The captured buffer is to be used, or given back, on the current stream.
  void take_turn() { turns_.take(flat_.compute_device()); }
  void begin_round(BufferPool& pool);
  void end_round();
  void end_reduction(GradientState then);
  // Whether gradients can be captured and reduced where the leaves' gradients live: ever, and now.
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
  HeldGradients held_;      // captured, not in the buffer
  StreamTurns turns_;       // of captures, and of what comes after them
  ParameterMask captured_;  // in this round, which may take several backward passes
  ParameterMask seen_;      // in this backward
  bool any_captured_ = false;
  bool carries_ = false;     // whether the round has something of earlier backward passes
  bool lost_ = false;        // whether that was lost by a backward that threw
  at::Tensor unreplicated_;  // reduced in the shard group only; shard dtype, the pool's
  ParameterMask unreplicated_captured_;
  int64_t in_flight_ = 0;
};

}  // namespace fsdp
