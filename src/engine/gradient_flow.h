// Gradients of all units, from their capture to the end of backward.
#pragma once

#include <string>
#include <vector>

#include "base/trace_recorder.h"
#include "engine/gradient_reducer.h"
#include "engine/memory_account.h"
#include "engine/unit_tree.h"
#include "schedule/reduction_order.h"

namespace fsdp::engine {

// schedule::ReductionOrder decides when a unit is reduced; the GradientReducer keeps track of reductions in flight.
//
// [Note: from a gradient to its reduction]
// The hook of a parameter (capture_hooks.cpp) hands its gradient to Engine::capture, and that to capture() below, which
// only stores it in the CapturedGradients of its FlatGradient. A unit is reduced when backward comes to another one:
// Engine::begin_visit, and Engine::capture at the first gradient of a unit that is not visited, call reduce_before(),
// which asks ReductionOrder::due. reduce() then lets GradientReducer::make_room wait for the reduction before, and
// GradientReducer::issue begin the next one: FlatGradient::begin_reduction copies what was captured into the gradient
// buffer, and Reduction::issue (reduction.cpp) issues the reduce-scatter. When it ends, LeafGradients have the result.
// What is left at the end of backward is reduced by finish_backward(), which Passes::finish_backward calls.
//
// Threads: captures are safe from any thread; passes begin and end on one thread at a time.
class GradientFlow {
 public:
  GradientFlow(const UnitContext& context, UnitTree& tree, MemoryAccount& memory, base::TraceRecorder& trace);

  GradientReducer& reducer() { return reducer_; }
  const GradientReducer& reducer() const { return reducer_; }
  ReductionSettings& settings() { return reducer_.settings(); }

  // Makes the groups in which units reduce. Call again after units have changed. Collective.
  void make_groups();
  // Replaces units that no longer exist.
  void replace(const Successor& successor) { order_.replace(successor); }
  // Reorders units that were made by the order of uses. `in_order`: by rank 0's.
  void reorder(const std::vector<schedule::ScheduledUnit*>& in_order) { order_.reorder(in_order); }

  // -- uses and captures --
  // Notes that an operator begins to use a unit.
  void note_use(Unit& unit);
  // Reduces the units whose turn has come now that backward has come to `unit`: an operator has used it, or it has got
  // its first gradient.
  void reduce_before(Unit& unit);
  // Captures a gradient (rule R5). Returns whether the unit has all its gradients.
  bool capture(Unit& unit, int64_t index, const at::Tensor& gradient) FSDP_EXCLUDES(unit.mutex);

  // -- passes --
  void begin_backward();
  // Reduces what is left, in the same order on all ranks, and waits if the user's options say so.
  void finish_backward();
  // Discards what a backward that threw has captured. Reductions in flight are discarded as well, because the user may
  // have cleared the gradients since.
  void discard_captures();
  // Whether the current backward reduces any unit's gradients.
  bool syncs_any() const;
  // Whether the unit stays gathered after the current backward: if its options say so, and between backward passes that
  // do not communicate.
  bool stays_gathered_after_backward(const Unit& unit) const;

  // -- the user's gradients --
  void notice_cleared() const;
  // Must be called before the leaves' gradients are read: notices cleared gradients, then waits for reductions.
  void settle();
  // Discards gradients that were accumulated and not reduced yet.
  void discard_accumulated();
  // Releases the memory of gradients that were cleared, unless the options keep memory.
  void trim() const;

 private:
  // Whether the current backward reduces the unit's gradients.
  bool syncs(const Unit& unit) const;
  void reduce(Unit& unit) FSDP_EXCLUDES(unit.mutex);
  void reduce(Unit& unit, FlatGradient& gradient) FSDP_EXCLUDES(unit.mutex);
  void suspend_what_stays();
  void reduce_the_rest();
  std::string agree_on_gradients();

  const UnitContext& context_;
  UnitTree& tree_;
  BufferPool& pool_;
  const bool keeps_memory_;
  base::TraceRecorder& trace_;
  GradientReducer reducer_;
  schedule::ReductionOrder order_;
  std::vector<Communicator*> groups_;  // of several ranks, in which gradients are reduced, shard groups first
};

}  // namespace fsdp::engine
