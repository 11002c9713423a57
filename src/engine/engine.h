// The engine of one tree of units.
//
// It works on tensors and names, not on modules. The dispatcher reports which parameters are touched, and autograd
// reports which gradients arrive. The engine passes both on to the types that it is made of.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/trace_recorder.h"
#include "engine/full_precision.h"
#include "engine/gatherer.h"
#include "engine/gradient_flow.h"
#include "engine/memory_account.h"
#include "engine/passes.h"
#include "engine/preparation.h"
#include "engine/unit_cutter.h"
#include "engine/unit_tree.h"
#include "fsdp/communicator.h"
#include "fsdp/fully_shard.h"

namespace fsdp::engine {

class Engine : public std::enable_shared_from_this<Engine> {
 public:
  explicit Engine(const EngineOptions& options);
  ~Engine();

  // -- parts --
  const EngineOptions& options() const { return context_.options; }
  const ProcessMesh& mesh() const { return options().mesh; }
  const EngineStreams& streams() const { return context_.streams; }
  c10::Device device() const { return context_.device(); }
  UnitTree& tree() { return tree_; }
  const UnitTree& tree() const { return tree_; }
  const std::vector<std::unique_ptr<Unit>>& units() const { return tree_.units(); }
  MemoryAccount& memory() { return memory_; }
  Gatherer& gatherer() { return gatherer_; }
  GradientFlow& gradients() { return gradients_; }
  UnitCutter& cutter() { return cutter_; }
  FullPrecision& precision() { return precision_; }
  Preparation& preparation() { return preparation_; }
  Passes& passes() { return passes_; }
  base::TraceRecorder& trace() { return trace_; }

  // -- building --
  // `groups`: the unit's parameters, one group for each FlatParameter.
  Unit& add_unit(UnitOrigin origin, const UnitOptions& options,
                 std::vector<std::vector<flat::ShardedParameter>> groups);
  // Takes over the units of an engine that was made for modules below this engine's. The caller must rename them
  // afterwards.
  void absorb(Engine& inner);
  // Returns the engine that has absorbed this one, or this engine if none has.
  Engine& current();

  // -- what the dispatcher and autograd tell --
  // Gathers and pins a unit before an operator uses one of its parameters (given by its index in the unit). Waits for
  // other ranks. Unpin it after the operator has ended: Gatherer::unpin.
  void enter(Unit& unit, int64_t parameter);
  // Captures a gradient that has reached a parameter (given by its index in the unit).
  void capture(Unit& unit, int64_t index, const at::Tensor& gradient);
  // Cuts the units that are marked to be cut, if any, or only the units of one record ([Note: when units are cut]).
  // Collective.
  void cut_units(const schedule::UseRecord* only = nullptr);
  // Must be called before a unit that is marked to be cut is used. Cuts units if this is backward and the use is not an
  // error.
  void cut_before_backward(const Unit& unit);

  // -- what the user asks --
  // Gathers all of these units at once and leaves them gathered. With `async_op`, only issues the gathers.
  void unshard(const std::vector<Unit*>& units, bool async_op);
  // Runs `body` while these units are gathered.
  void pin(const std::vector<Unit*>& units, const std::function<void()>& body);
  EngineStats stats() const;
  // Returns the records of this rank's collectives over all groups.
  std::string collective_log() const;

 private:
  void begin_visit(Unit& unit);

  UnitContext context_;
  base::TraceRecorder trace_;
  UnitTree tree_;
  MemoryAccount memory_;
  Gatherer gatherer_;
  GradientFlow gradients_;
  UnitCutter cutter_;
  FullPrecision precision_;
  Preparation preparation_;
  const Passes::Monitors monitors_;
  Passes passes_;
  std::shared_ptr<Engine> absorbed_into_;
};

}  // namespace fsdp::engine
