// A reduction of one FlatParameter's gradients over the ranks, from the buffer of a round to the result for the leaves.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "engine/buffer_pool.h"
#include "engine/captured_gradients.h"
#include "engine/engine_streams.h"
#include "engine/leaf_gradients.h"
#include "engine/parameter_mask.h"
#include "engine/shard_groups.h"
#include "engine/unreplicated_sum.h"
#include "flat/flat_parameter.h"
#include "fsdp/fully_shard.h"

namespace fsdp::engine {

// Describes how to reduce a round.
struct ReduceCall {
  const ShardGroups& groups;
  const EngineStreams& streams;
  double divisor = 1;      // of the sum over all ranks of both groups
  bool all_reduce = true;  // false: a later round reduces over the replicas
  CollectiveId id;
  const CommunicationHook& communication_hook;
  bool sees_norm = false;  // the last stage finds the norm of what it writes: summary()

  // Replicas are reduced on one stream, whether in one stage or in two.
  const c10::Stream& first_stream() const { return groups.shard ? streams.reduce : streams.all_reduce; }
};

// [Note: where gradients are divided]
// The sum over W ranks is divided by the divisor D, which is W by default. A communicator does both. On CPUs it adds
// bf16 and fp16 in fp32. NCCL adds them in their own dtype, so it multiplies by a power of two before the addition and
// by the rest afterwards (split_scale). Therefore no sum overflows, and nothing is divided here before it is sent. With
// two stages, the result of the first one, in reduce_dtype, is the mean over the shard group's F ranks. It is of the
// size of a rank's own gradient, and overflows or underflows no earlier than that. The second stage multiplies by F /
// D.
//
// Threads: one at a time. Each stage takes its memory (take_memory, begin_second_stage) under the lock of the
// gradients, because the memory of the leaves' gradients may serve, and is then issued without the lock.
class Reduction {
 public:
  enum class Stage : uint8_t {
    kOnly,         // one collective, or the user's hook
    kFirstOfTwo,   // a reduce-scatter that an all-reduce over replicas follows
    kSecond,       // that all-reduce
    kLeftToLater,  // a reduce-scatter of which a later round reduces the result over the replicas
  };
  // `round`: the captured gradients. `leaves`: they get the result.
  Reduction(const flat::FlatParameter& flat, LeafGradients& leaves, CapturedGradients::Round round,
            const ReduceCall& call, BufferPool& pool);

  // Takes the memory of the first stage, for use on the current stream. `alone`: no other reduction of these gradients
  // is in flight.
  void take_memory(const ReduceCall& call, bool alone);
  // Passes the round to the communicator or to the user's hook, on the current stream.
  void issue(const ReduceCall& call);

  Stage stage() const { return stage_; }
  // Continues on `stream`, and waits there for the first of two stages.
  void await_first_stage(const c10::Stream& stream);
  // Begins the second stage: adds what earlier rounds have left for the replicas, and takes memory.
  void begin_second_stage(UnreplicatedSum& unreplicated, bool alone);
  void issue_second_stage(const CollectiveId& id);

  // Lets the collective in progress go on without waiting for its end.
  void advance() { work_->advance(); }
  // Whether a collective was issued and not waited for by the next stage. False if a stage could not be issued.
  bool in_progress() const { return work_ != nullptr; }
  // Waits for the last stage. Throws if it could not be issued.
  void wait();

  // The stream of the current stage and of later work on its result.
  const c10::Stream& stream() const { return stream_; }
  // Whether it runs, or ran, over a shard group.
  bool over_shard_group() const { return over_shard_group_; }
  // Which parameters any rank has captured, once the last stage was waited for.
  const ParameterMask& captured() const { return captured_; }
  bool any() const { return captured_.count() > 0; }
  bool carries() const { return carries_; }
  // The result: laid out like the shard, in the gradient dtype (shard dtype if it is kLeftToLater).
  at::Tensor& output() { return output_; }
  // The summary of the result, if the call asked for one and the last stage was waited for.
  const ReductionSummary& summary() const { return summary_; }
  // Gives all memory but the result back, on the current stream.
  void release_inputs();
  void release_output();

 private:
  void take_memory_to_scatter(const ReduceCall& call, bool alone);
  at::Tensor take_output(bool alone);
  void issue_reduce_scatter(const ReduceCall& call);
  void issue_all_reduce(const ReduceCall& call);
  void run_hook(const ReduceCall& call);
  ReduceOptions options_of_last_stage(double scale);

  const flat::FlatParameter& flat_;
  LeafGradients& leaves_;
  BufferPool& pool_;
  c10::Stream stream_;
  Stage stage_ = Stage::kOnly;
  const bool over_shard_group_;
  at::Tensor buffer_;   // of the round
  at::Tensor partial_;  // between two stages: laid out like the shard, reduce dtype
  at::Tensor output_;
  ParameterMask captured_;
  bool carries_;
  const bool sees_norm_;
  ReductionSummary summary_;
  std::unique_ptr<Work> work_;
  std::shared_ptr<Communicator> replicate_;
  double second_scale_ = 1;
};

}  // namespace fsdp::engine
