// Tracks the reductions of gradients over the ranks: which are in flight, when each continues, and which hooks get the
// result.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "base/trace_recorder.h"
#include "engine/buffer_pool.h"
#include "engine/unit.h"
#include "fsdp/fully_shard.h"

namespace fsdp::engine {

// The user's settings of reductions: see ShardedModule. They change only while no backward runs.
struct ReductionSettings {
  BackwardOptions backward{};  // of the tree; units may be switched otherwise
  // Scopes in which no unit is reduced, or none over the replicas, however it is switched.
  bool no_sync = false;
  bool no_all_reduce = false;
  std::optional<double> divide_factor{};  // instead of the number of ranks that contribute to a gradient
  bool sees_norm = false;                 // set_reductions_see_norm
  GradientHook gradient_hook{};
  CommunicationHook communication_hook{};
  UnitReducedHook unit_reduced_hook{};
};

// [Note: reductions in flight]
// A reduction runs while backward computes the next unit's gradients. A reduce-scatter is finished when the next unit's
// reduction is issued, so two gradient buffers are in use at a time. If an all-reduce over replicas follows, this
// second stage is issued when the next unit's reduction is issued, and is finished one unit later. A plain all-reduce
// is also finished one unit later, because it has two steps itself (sums to their owners, and back). In both cases
// three buffers are in use at a time.
//
// Threads: safe. The user's hooks are called without any lock of the reducer or of a unit.
// A reduction that one thread finishes is not in flight any more for another one.
class GradientReducer {
 public:
  GradientReducer(const UnitContext& context, BufferPool& pool, base::TraceRecorder& trace)
      : context_(context), pool_(pool), trace_(trace) {}

  ReductionSettings& settings() { return settings_; }

  // The options of the backward that began last, as they apply to a unit.
  BackwardOptions current(const Unit& unit) const;
  bool is_last_backward() const { return current_.backward.is_last_backward; }
  void begin_backward() FSDP_EXCLUDES(mutex_);

  // Finishes the reductions that the next one leaves no room for, and continues the others. Call before issue(),
  // without holding the lock of a unit, because hooks are called.
  void make_room() FSDP_EXCLUDES(mutex_);
  // Passes the gradients that a unit has captured to the communicators, or to the user's communication hook. Call
  // without holding the lock of a unit: the hook may use its parameters.
  void issue(Unit& unit, FlatGradient& gradient) FSDP_EXCLUDES(mutex_);
  // Waits for all reductions in flight and adds their results to the leaves' gradients. These may then be used on the
  // current stream.
  void finish_all() FSDP_EXCLUDES(mutex_);
  // Waits for the current backward's reductions in flight and discards their results. Finishes older reductions.
  void discard_current() FSDP_EXCLUDES(mutex_);

  // Describes which reductions were issued in this backward: "end of backward after 3 reductions, the last one of
  // 'l0'".
  std::string describe_backward() const FSDP_EXCLUDES(mutex_);
  // Returns how many bytes of transient gradient buffers this backward needed at a time, by the order of its
  // reductions.
  int64_t largest_window() const FSDP_EXCLUDES(mutex_);
  // Adds the numbers of collectives that were issued.
  void count(EngineStats& stats) const;

 private:
  struct InFlight {
    Unit* unit;
    FlatGradient* gradient;
    std::unique_ptr<Reduction> reduction;
    int64_t backward;
    int64_t issued;  // for the trace
  };

  ReduceCall call_for(Unit& unit) const;
  void note_issue(const Unit& unit, const FlatGradient& gradient) FSDP_REQUIRES(mutex_);
  // Returns the oldest reduction if it must be finished before the next one is issued.
  std::optional<InFlight> take_for_room() FSDP_EXCLUDES(mutex_);
  // Takes the oldest reduction out. Empty: none is in flight.
  std::optional<InFlight> take_oldest() FSDP_EXCLUDES(mutex_);
  InFlight pop_oldest() FSDP_REQUIRES(mutex_);
  bool advance(InFlight& latest) FSDP_REQUIRES(mutex_);
  void finish(InFlight& oldest) FSDP_EXCLUDES(mutex_);
  // What happens to the result of a reduction before it is added to the leaves' gradients: gradients of parameters that
  // are shared by parts are added up, and the user's hook sees them. May be empty.
  std::function<void(const at::Tensor&)> hook_for(const InFlight& reduced) const;
  void report_unit(InFlight& finished) FSDP_EXCLUDES(mutex_);
  void settle_on_host() const;
  void trim_groups() FSDP_EXCLUDES(mutex_);

  const UnitContext& context_;
  BufferPool& pool_;
  base::TraceRecorder& trace_;
  ReductionSettings settings_;
  struct {
    BackwardOptions backward{};
    bool no_sync = false;
    bool no_all_reduce = false;
  } current_;  // changes only when a backward begins

  mutable base::Mutex mutex_;
  std::deque<InFlight> in_flight_ FSDP_GUARDED_BY(mutex_);
  int64_t backward_ FSDP_GUARDED_BY(mutex_) = 0;
  int64_t issued_in_backward_ FSDP_GUARDED_BY(mutex_) = 0;
  const Unit* last_issued_ FSDP_GUARDED_BY(mutex_) = nullptr;
  // The bytes of each unit whose reduction was issued in this backward.
  std::vector<int64_t> transient_ FSDP_GUARDED_BY(mutex_);
  // The last backward in which the hook for reduced units was called.
  std::unordered_map<const FlatGradient*, int64_t> reported_ FSDP_GUARDED_BY(mutex_);
  // Groups used since memory was last trimmed.
  std::set<std::shared_ptr<Communicator>> used_groups_ FSDP_GUARDED_BY(mutex_);
  std::atomic<int64_t> reduce_scatters_{0};
  std::atomic<int64_t> all_reduces_{0};
};

}  // namespace fsdp::engine
