// The engine: the units of one tree, and the policy that gathers, releases and reduces them.
//
// It works on tensors and names, not on modules. The dispatcher reports which parameters are touched, and autograd
// reports which gradients arrive.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/trace_recorder.h"
#include "engine/backward_tracker.h"
#include "engine/buffer_pool.h"
#include "engine/engine_streams.h"
#include "engine/gradient_reducer.h"
#include "engine/unit.h"
#include "fsdp/communicator.h"
#include "fsdp/fully_shard.h"
#include "schedule/reduction_order.h"
#include "schedule/residency.h"
#include "schedule/use_record.h"

namespace fsdp {

class CollectiveMonitor;

// See Options.
struct OverlapOptions {
  BackwardPrefetch backward_prefetch = BackwardPrefetch::kPre;
  bool forward_prefetch = true;
  size_t max_gathered_units = 2;  // or schedule::kNoLimit
  bool one_communicator = false;
  bool high_priority_streams = true;
};

// Options that all units of a tree share.
struct EngineOptions {
  ProcessMesh mesh;
  bool use_orig_params = true;
  bool keep_memory = false;
  ShardMemory memory{c10::Device(c10::kCPU)};  // where shards lie, and where parameters are used
  OverlapOptions overlap{};
  CollectiveCheck collective_check{};
  bool read_only_parameters = false;  // DebugOptions
  // Distinguishes several models over one communicator.
  int64_t model = 1;
};

class Engine : public std::enable_shared_from_this<Engine> {
 public:
  explicit Engine(const EngineOptions& options);
  ~Engine();

  // -- building --
  const EngineOptions& options() const { return options_; }
  const ProcessMesh& mesh() const { return options_.mesh; }
  const EngineStreams& streams() const { return streams_; }
  c10::Device device() const { return options_.memory.compute_device(); }
  // A buffer that was cast from its own dtype to `low` (Options::buffer_dtype).
  struct CastBuffer {
    at::Tensor buffer;
    at::ScalarType original;
    at::ScalarType low;
  };
  void add_buffer(const CastBuffer& buffer) { buffers_.push_back(buffer); }
  // Parameters below the engine's modules that are not sharded (Options::ignored_parameters, ignored_modules).
  void ignore(std::vector<at::Tensor> parameters) { ignored_ = std::move(parameters); }
  const std::vector<at::Tensor>& ignored() const { return ignored_; }
  // The modules (identities) that fully_shard was called on, including the modules of absorbed engines.
  void add_root(const void* module) { roots_.push_back(module); }
  const std::vector<const void*>& roots() const { return roots_; }
  // `groups`: the unit's parameters, one group for each FlatParameter.
  Unit& add_unit(UnitOrigin origin, const UnitOptions& options, std::vector<std::vector<ShardedParameter>> groups);
  // Marks a unit of one parameter: it will be cut together with the other units of the record.
  void cut_later(Unit& unit, const std::shared_ptr<schedule::UseRecord>& record);
  // Takes over the units of an engine that was made for modules below this engine's. The caller must rename them
  // afterwards.
  void absorb(Engine& inner);
  // Returns the engine that has absorbed this one, or this engine if none has.
  Engine& current();
  const std::vector<std::unique_ptr<Unit>>& units() const { return units_; }
  std::vector<Unit*> all_units() const;
  // Prepares a write to the unit's shards: releases gathered parameters that are read in place from the shards, and
  // waits until no other rank reads the shards. Every write to a shard must go through this function, by the shard's
  // dispatch key or by an explicit call.
  void prepare_write_to_shards(Unit& unit);
  // Returns the units made for this module itself. Throws if there are none.
  std::vector<Unit*> units_of(const void* module) const;
  // Whether only the engine still holds its parameters.
  bool unused() const;

  // -- what the dispatcher and autograd tell --
  // Gathers and pins a unit before an operator uses one of its parameters (given by its index in the unit). Waits for
  // other ranks.
  void enter(Unit& unit, int64_t parameter);
  // Unpins a unit after the operator has ended.
  void leave(Unit& unit);
  // Must be called before a view of one of the unit's parameters is made. Gathers nothing, because a view reads no
  // values.
  void enter_view(Unit& unit);
  // Captures a gradient that has reached a parameter (given by its index in the unit).
  void capture(Unit& unit, int64_t index, const at::Tensor& gradient);

  // Cuts the units that are marked to be cut, if any, or only the units of one record ([Note: when units are cut]).
  // Collective.
  void cut_units(const schedule::UseRecord* only = nullptr);
  // Must be called before a unit that is marked to be cut is used. Cuts units if this is backward and the use is not an
  // error.
  void cut_before_backward(const Unit& unit);

  // -- what the user asks --
  ExecutionOrder execution_order() const;
  void verify_plan();
  void check_membership();
  // Gathers all of these units at once and leaves them gathered. With `async_op`, only issues the gathers.
  void unshard(const std::vector<Unit*>& units, bool async_op);
  void wait_for(const std::vector<Unit*>& units);
  void reshard();
  void reshard(const std::vector<Unit*>& units);
  void reset();
  // See ShardedModule.
  void set_full_precision(bool on);
  bool full_precision() const { return full_precision_; }
  void pin(const std::vector<Unit*>& units, const std::function<void()>& body);
  void summon_full_params(const SummonOptions& options, const std::function<void()>& body);
  void for_each_full_parameter(const std::function<void(const std::string&, const at::Tensor&)>& visit,
                               const FullParameterOptions& options = {});
  void update_whole_parameters(const std::function<void(const WholeParameter&)>& update);
  void notice_cleared_gradients();
  // Must be called before the leaves' gradients are read: notices cleared gradients, then waits for reductions.
  void settle_gradients();
  // Frees the memory of gradients that were cleared, unless the options keep memory.
  void trim_gradients();
  // Drops gradients that were accumulated and not reduced yet.
  void forget_accumulated();
  GradientReducer& reducer() { return reducer_; }
  TraceRecorder& trace() { return trace_; }
  // See ShardedModule::start_trace.
  void start_trace(std::function<std::vector<MemoryCategory>()> more);
  EngineStats stats() const;
  std::vector<MemoryCategory> memory();
  // Appends a memory report to an out-of-memory error, at most once: how much memory each part of the engine holds, and
  // which units are gathered. `doing`: the action that needed the memory. Leaves other errors unchanged.
  void explain_out_of_memory(c10::Error& error, const std::string& doing);
  // Returns the records of this rank's collectives over all groups.
  std::string collective_log() const;
  void count_all_gather() { ++all_gathers_; }
  // See EngineStreams.
  void order_gathers_behind_writes();
  // Runs `body` such that host memory that it allocates lies in files, if the shards lie in files.
  void with_offloaded_memory(const std::function<void()>& body);

  // Test mode, the strictest policy: every unit is released as soon as the outermost operator on it has ended, released
  // memory is overwritten with NaN and refilled at other addresses, and shards never serve as unsharded buffers.
  void set_strict_release(bool on);

 private:
  void prepare();
  // Shares the shards of all units among ranks that share memory. Throws if there is too little memory. Collective.
  void share_shards();
  void make_park_groups();
  void make_reduce_groups();
  void check_ready_to_cut();
  void cut(schedule::UseRecord& record);
  std::unique_ptr<Unit> unite(const std::vector<Unit*>& members);
  void note_order(const std::vector<schedule::UseRecord::Use>& order);
  void note_use(const Unit& unit);
  using Successors = std::unordered_map<const schedule::ScheduledUnit*, Unit*>;
  void forget(const Successors& successors);
  void observe_backward();
  void begin_visit(Unit& unit);
  void end_visit();
  void hold(Unit& unit);  // enter() for the user; not part of the execution order
  // Issues gathers of units that are expected after the unit used last.
  void prefetch();
  void make_room_for(Unit& unit, std::optional<Pass> pass);
  const std::vector<Unit*>& wanted_after(const Unit& unit) const;
  bool begin_prefetch(Unit& unit);
  void note_held_back(Unit& unit);
  // Whether the running backward may use values of the unit that an earlier forward saved. A forward inside backward
  // (in a function whose backward runs modules) does not use them if the unit was used only inside backward passes.
  bool backward_relies_on(const Unit& unit) const;
  // The following functions are called under unit.mutex, unless marked otherwise.
  void gather_to_use(Unit& unit);
  void notice_shard_writes(Unit& unit);
  void drop_stale(Unit& unit);
  void begin_gather(Unit& unit);
  void gather_ahead(Unit& unit);
  void ensure_gathered(Unit& unit);
  void finish_gather(Unit& unit);
  void forget_resident(Unit& unit);
  void release(Unit& unit);
  void release_if_idle(Unit& unit);         // takes unit.mutex
  void release_after_backward(Unit& unit);  // takes unit.mutex
  void reduce_before(Unit& unit);
  void reduce(Unit& unit);                          // takes unit.mutex
  void reduce(Unit& unit, FlatGradient& gradient);  // under unit.mutex
  bool syncs(const Unit& unit) const;
  // Reduces the remaining units at the end of a backward, in the same order on all ranks, and then the gradients that
  // any rank has left.
  void reduce_the_rest();
  void suspend_what_stays();
  bool stays_gathered_after_backward(const Unit& unit) const;
  bool capture_in(Unit& unit, int64_t index, const at::Tensor& gradient);
  void begin_backward();
  void end_pass(Pass pass);
  void finish_backward();
  std::string agree_on_gradients();
  void plan_memory();
  int64_t gradient_shards_nbytes();  // the current bytes; updates the peak
  std::vector<std::pair<std::string, int64_t>> memory_now(const std::vector<MemoryCategory>& more);
  void discard_captures();
  // Calls `visit` for each FlatParameter that gets gradients, under its unit's lock.
  void for_each_gradient(const std::function<void(const Unit&, FlatGradient&)>& visit);
  void write_back(Unit& unit);
  void run_on_rank_0(const std::vector<Unit*>& units, const std::function<void()>& body);
  void run_in_write_scope(const std::vector<Unit*>& units, bool writeback, const std::function<void()>& body);

  EngineOptions options_;
  EngineStreams streams_;
  std::vector<std::unique_ptr<Unit>> units_;
  std::vector<at::Tensor> ignored_;
  std::vector<const void*> roots_;
  std::vector<CastBuffer> buffers_;
  std::mutex records_mutex_;                                       // guards the contents of use_records_
  std::vector<std::shared_ptr<schedule::UseRecord>> use_records_;  // of units to be cut
  std::vector<std::unique_ptr<Unit>> retired_units_;               // without parameters; handles may refer to them
  struct OrderedUse {
    std::vector<seams::StorageOwnerPtr> owners;
    bool returns = false;
    bool joins = true;
  };
  std::vector<OrderedUse> execution_order_;  // of parameters of units that were cut
  std::shared_ptr<Engine> absorbed_into_;
  std::atomic<bool> prepared_{false};
  std::mutex prepare_mutex_;

  int64_t planned_parameters_ = 0;  // bytes
  int64_t planned_gradients_ = 0;
  std::atomic<int64_t> peak_gradient_shards_{0};

  TraceRecorder trace_;
  BufferPool parameter_pool_;
  GradientReducer reducer_;
  BackwardTracker backward_;
  schedule::Residency residency_;
  schedule::ReductionOrder reduction_order_;

  std::vector<std::shared_ptr<CollectiveMonitor>> monitors_;
  std::vector<Communicator*>
      reducing_groups_;  // groups of several ranks in which gradients are reduced, shard groups first
  // Subgroups of units' shard groups, by shard group and size (ReshardAfterForward).
  std::map<std::pair<const Communicator*, int>, std::shared_ptr<Communicator>> park_groups_;
  std::atomic<bool> may_alias_{true};  // whether a shard may serve as the unsharded buffer itself
  bool strict_ = false;
  bool full_precision_ = false;
  std::atomic<int64_t> all_gathers_{0};
  std::atomic<int64_t> prefetches_{0};
  std::atomic<int64_t> prefetches_wasted_{0};
};

}  // namespace fsdp
