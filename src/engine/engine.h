// The engine of one tree of units.
//
// It works on tensors and names, not on modules. The dispatcher reports which parameters are touched, and autograd
// reports which gradients arrive. The engine passes both on to the types that it is made of.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/trace_recorder.h"
#include "engine/backward_tracker.h"
#include "engine/gatherer.h"
#include "engine/gradient_flow.h"
#include "engine/memory_account.h"
#include "engine/unit_cutter.h"
#include "engine/unit_tree.h"
#include "fsdp/communicator.h"
#include "fsdp/fully_shard.h"

namespace fsdp::comm {
class CollectiveMonitor;
}  // namespace fsdp::comm

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
  base::TraceRecorder& trace() { return trace_; }

  // -- building --
  // `groups`: the unit's parameters, one group for each FlatParameter.
  Unit& add_unit(UnitOrigin origin, const UnitOptions& options,
                 std::vector<std::vector<flat::ShardedParameter>> groups);
  // A buffer that was cast from its own dtype to `low` (Options::buffer_dtype).
  struct CastBuffer {
    at::Tensor buffer;
    at::ScalarType original;
    at::ScalarType low;
  };
  void add_buffer(const CastBuffer& buffer) { buffers_.push_back(buffer); }
  // Takes over the units of an engine that was made for modules below this engine's. The caller must rename them
  // afterwards.
  void absorb(Engine& inner);
  // Returns the engine that has absorbed this one, or this engine if none has.
  Engine& current();
  // Makes all that the first use needs: compares the ranks' units and options, and makes groups. Collective when units
  // have changed since, otherwise without effect.
  void prepare();
  // Takes over changes of requires_grad that were made on the module's parameters or on leaves. Does nothing during
  // backward. If there are any, the next prepare() compares the ranks.
  void follow_requires_grad();
  // Compares the ranks' units and options again. Collective.
  void compare_again();

  // -- what the dispatcher and autograd tell --
  // Gathers and pins a unit before an operator uses one of its parameters (given by its index in the unit). Waits for
  // other ranks. Unpin it after the operator has ended: Gatherer::unpin.
  void enter(Unit& unit, int64_t parameter);
  // Captures a gradient that has reached a parameter (given by its index in the unit).
  void capture(Unit& unit, int64_t index, const at::Tensor& gradient);
  // Reduces what earlier backward passes have added up (ShardedModule::reduce_gradients). Collective.
  void reduce_accumulated();

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
  // See ShardedModule.
  void set_reshard_after_forward(const std::vector<Unit*>& units, const ReshardAfterForward& reshard);
  void set_reshard_after_backward(const std::vector<Unit*>& units, bool on);
  void set_unshard_in_backward(const std::vector<Unit*>& units, bool on);
  void set_full_precision(bool on);
  bool full_precision() const { return context_.full_precision; }
  // Must be called before the leaves' gradients are read: cleans up after a failed backward, notices gradients that
  // user code has cleared, and waits for reductions.
  void settle_gradients();
  // Discards gradients that were accumulated and not reduced yet, for a step that begins anew. Notices gradients that
  // user code has cleared.
  void discard_accumulated();
  // Discards all gradients on their way to the leaves and releases all units, after an error.
  void reset();
  EngineStats stats() const;
  // Returns the records of this rank's collectives over all groups.
  std::string collective_log() const;

 private:
  void make_park_groups() FSDP_REQUIRES(preparing_);
  void observe_backward();
  void begin_visit(Unit& unit);
  void begin_backward();
  void finish_backward();
  void discard_captures();
  void check_may_switch_precision(Unit& unit) const;

  UnitContext context_;
  base::TraceRecorder trace_;
  UnitTree tree_;
  MemoryAccount memory_;
  Gatherer gatherer_;
  GradientFlow gradients_;
  UnitCutter cutter_;
  BackwardTracker backward_;
  const std::vector<std::shared_ptr<comm::CollectiveMonitor>> monitors_;
  std::vector<CastBuffer> buffers_;
  std::shared_ptr<Engine> absorbed_into_;
  base::Mutex preparing_;
  std::atomic<bool> prepared_{false};
  // Subgroups of units' shard groups, by shard group and size (ReshardAfterForward).
  std::map<std::pair<const Communicator*, int>, std::shared_ptr<Communicator>> park_groups_ FSDP_GUARDED_BY(preparing_);
};

}  // namespace fsdp::engine
