// The engine: the units of one tree, and the policy that gathers, releases and reduces them.
//
// It takes tensors and names, not modules; the dispatcher tells it what is touched, autograd tells it what gradients
// arrive.
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
  ShardMemory memory{c10::Device(c10::kCPU)};  // and where parameters are used
  OverlapOptions overlap{};
  CollectiveCheck collective_check{};
  bool read_only_parameters = false;  // DebugOptions
  // Tells several models over one communicator apart.
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
  // Parameters below its modules that are not sharded (Options::ignored_parameters, ignored_modules).
  void ignore(std::vector<at::Tensor> parameters) { ignored_ = std::move(parameters); }
  const std::vector<at::Tensor>& ignored() const { return ignored_; }
  // The modules (identities) that fully_shard was called on, those of absorbed engines included.
  void add_root(const void* module) { roots_.push_back(module); }
  const std::vector<const void*>& roots() const { return roots_; }
  // `groups`: the unit's parameters, one group for each FlatParameter.
  Unit& add_unit(UnitOrigin origin, const UnitOptions& options, std::vector<std::vector<ShardedParameter>> groups);
  // The unit, of one parameter, is to be cut with the others of the record.
  void cut_later(Unit& unit, const std::shared_ptr<schedule::UseRecord>& record);
  // Takes over the units of an engine that was made for modules below this one's; rename them afterwards.
  void absorb(Engine& inner);
  // The engine that has absorbed this one, or this.
  Engine& current();
  const std::vector<std::unique_ptr<Unit>>& units() const { return units_; }
  std::vector<Unit*> all_units() const;
  // The unit's shards are about to be written: releases what was gathered of them, which is read where they lie, and
  // waits until no other rank reads them. Every write to a shard goes through this, by its dispatch key or by hand.
  void prepare_write_to_shards(Unit& unit);
  // The units made for this module itself; throws when there are none.
  std::vector<Unit*> units_of(const void* module) const;
  // Whether nobody but the engine holds its parameters any more.
  bool unused() const;

  // -- what the dispatcher and autograd tell --
  // Gathers and pins a unit of which an operator is about to use a parameter (its index in the unit). Waits for other
  // ranks.
  void enter(Unit& unit, int64_t parameter);
  // The operator has ended.
  void leave(Unit& unit);
  // A view of one of its parameters is about to be made, which reads nothing.
  void enter_view(Unit& unit);
  // A gradient has reached a parameter (its index in the unit).
  void capture(Unit& unit, int64_t index, const at::Tensor& gradient);

  // Cuts the units that are to be cut, if there are any, or only those of one record ([Note: when units are cut]).
  // Collective.
  void cut_units(const schedule::UseRecord* only = nullptr);
  // A unit that is to be cut is about to be used: the time to cut, if it is backward and the use is no error.
  void cut_before_backward(const Unit& unit);

  // -- what the user asks --
  ExecutionOrder execution_order() const;
  void verify_plan();
  void check_membership();
  // Gathers units, all at once, and leaves them gathered; asynchronously: only issues the gathers.
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
  // Before somebody looks at the leaves' gradients: waits for reductions, notices what was cleared.
  void settle_gradients();
  // Gives back memory of gradients that were cleared, if the options say so.
  void trim_gradients();
  // Drops gradients that were accumulated and not reduced yet.
  void forget_accumulated();
  GradientReducer& reducer() { return reducer_; }
  TraceRecorder& trace() { return trace_; }
  // See ShardedModule::start_trace.
  void start_trace(std::function<std::vector<MemoryCategory>()> more);
  EngineStats stats() const;
  std::vector<MemoryCategory> memory();
  // Adds to an error that memory is wanting what holds how much, and which units are gathered. `doing`: for what it was
  // wanted. Does nothing to other errors, and once for each.
  void explain_out_of_memory(c10::Error& error, const std::string& doing);
  // The records of this rank's collectives, over all groups.
  std::string collective_log() const;
  void count_all_gather() { ++all_gathers_; }
  // See EngineStreams.
  void order_gathers_behind_writes();
  // Runs `body` so that host memory which it allocates lies in files, if shards do.
  void with_offloaded_memory(const std::function<void()>& body);

  // Test mode, the strictest policy: every unit is released as soon as the outermost operator on it has ended, released
  // memory is overwritten with NaN and refilled at other addresses, and shards never serve as unsharded buffers.
  void set_strict_release(bool on);

 private:
  void prepare();
  // Ranks that share memory put the shards of all units there. Throws where memory is wanting. Collective.
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
  void hold(Unit& unit);  // enter() for the user: no part of the execution order
  // Issues gathers of units that are expected after the one used last.
  void prefetch();
  void make_room_for(Unit& unit, std::optional<Pass> pass);
  const std::vector<Unit*>& wanted_after(const Unit& unit) const;
  bool begin_prefetch(Unit& unit);
  void note_held_back(Unit& unit);
  // Whether the running backward may use values of the unit that a forward before it saved. A forward inside backward
  // (a function's backward that runs modules of its own) does not, where the unit was used inside backward passes only.
  bool backward_relies_on(const Unit& unit) const;
  // The following under unit.mutex.
  void gather_to_use(Unit& unit);
  void notice_shard_writes(Unit& unit);
  void drop_stale(Unit& unit);
  void begin_gather(Unit& unit);
  void gather_ahead(Unit& unit);
  void ensure_gathered(Unit& unit);
  void finish_gather(Unit& unit);
  void forget_resident(Unit& unit);
  void release(Unit& unit);
  void release_if_idle(Unit& unit);         // takes it itself
  void release_after_backward(Unit& unit);  // takes it itself
  void reduce_before(Unit& unit);
  void reduce(Unit& unit);                          // takes unit.mutex
  void reduce(Unit& unit, FlatGradient& gradient);  // under unit.mutex
  bool syncs(const Unit& unit) const;
  // What is left to reduce at the end of a backward, in the same order on all ranks; then what one of them has left.
  void reduce_the_rest();
  void suspend_what_stays();
  bool stays_gathered_after_backward(const Unit& unit) const;
  bool capture_in(Unit& unit, int64_t index, const at::Tensor& gradient);
  void begin_backward();
  void end_pass(Pass pass);
  void finish_backward();
  std::string agree_on_gradients();
  void plan_memory();
  int64_t gradient_shards_nbytes();  // now; notes the peak
  std::vector<std::pair<std::string, int64_t>> memory_now(const std::vector<MemoryCategory>& more);
  void discard_captures();
  // With each FlatParameter that gets gradients, under its unit's lock.
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
  std::mutex records_mutex_;                                       // guards what the records have seen
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
