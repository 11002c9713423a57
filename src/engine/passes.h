// Where each pass of an engine begins and ends, and what follows from it.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "engine/backward_tracker.h"
#include "engine/gatherer.h"
#include "engine/gradient_flow.h"
#include "engine/memory_account.h"
#include "engine/preparation.h"
#include "schedule/step_tracker.h"

namespace fsdp::comm {
class CollectiveMonitor;
}  // namespace fsdp::comm

namespace fsdp::engine {

// Tells the parts of an engine in the right order. Threads: uses may be noted from any thread; passes begin and end on
// one thread at a time.
class Passes {
 public:
  using Monitors = std::vector<std::shared_ptr<comm::CollectiveMonitor>>;
  // `owner`: returns the engine, which a backward keeps alive until its end. `monitors`: count the steps.
  Passes(const UnitContext& context, Preparation& preparation, MemoryAccount& memory, Gatherer& gatherer,
         GradientFlow& gradients, Monitors monitors, std::function<std::shared_ptr<void>()> owner);

  const schedule::StepTracker& steps() const { return steps_; }

  // Must be called at each use and capture: notes the backward that this thread runs, if any.
  void observe() {
    if (backward_.changed()) backward_.observe(owner_());
  }
  // Notes that a visit begins.
  void note_visit();
  // Whether the backward that this thread runs is not inside another one. It must have been observed.
  bool is_outermost() { return backward_.is_outermost(); }

  // Must be called before the leaves' gradients are read: cleans up after a failed backward, notices gradients that
  // user code has cleared, and waits for reductions.
  void settle_gradients();
  // Reduces what earlier backward passes have added up (ShardedModule::reduce_gradients). Collective.
  void reduce_accumulated();
  // Discards gradients that were accumulated and not reduced yet, for a step that begins anew. Notices gradients that
  // user code has cleared.
  void discard_accumulated();
  // Discards all gradients on their way to the leaves and releases all units, after an error.
  void reset();

 private:
  void begin_backward();
  void finish_backward();
  void discard_captures();

  const UnitContext& context_;
  Preparation& preparation_;
  MemoryAccount& memory_;
  Gatherer& gatherer_;
  GradientFlow& gradients_;
  const Monitors monitors_;
  const std::function<std::shared_ptr<void>()> owner_;
  schedule::StepTracker steps_;
  BackwardTracker backward_;
};

}  // namespace fsdp::engine
