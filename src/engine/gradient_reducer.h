// Tracks the reductions of gradients over the ranks: which are in flight, when each continues, and which hooks get the
// result.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/trace_recorder.h"
#include "engine/buffer_pool.h"
#include "engine/engine_streams.h"
#include "engine/unit.h"
#include "fsdp/fully_shard.h"

namespace fsdp {

// [Note: reductions in flight]
// A reduction runs while backward computes the next unit's gradients. A reduce-scatter is finished when the next unit's
// reduction is issued, so two gradient buffers are in use at a time. If an all-reduce over replicas follows, this
// second stage is issued when the next unit's reduction is issued, and is finished one unit later. A plain all-reduce
// is also finished one unit later, because it has two steps itself (sums to their owners, and back). In both cases
// three buffers are in use at a time.
//
// Threads: safe; takes its own lock after the unit's.
class GradientReducer {
 public:
  struct Memory {
    bool keep_memory = false;        // see Options
    bool to_host = false;            // the shards' gradients lie in host memory, and the device writes to it
    BufferPool::Source source = {};  // of gradient buffers
  };
  GradientReducer(const EngineStreams& streams, const Memory& memory, TraceRecorder& trace)
      : streams_(streams),
        to_host_(memory.to_host),
        pool_(streams.device, memory.keep_memory, memory.source),
        trace_(trace) {}

  BufferPool& pool() { return pool_; }
  const BufferPool& pool() const { return pool_; }

  // The user's options for the backward passes that begin from now on.
  BackwardOptions options;
  // The divisor of gradients, instead of the number of ranks that contribute.
  std::optional<double> divide_factor;
  // See ShardedModule::set_reductions_see_norm.
  bool sees_norm = false;
  // See ShardedModule.
  GradientHook gradient_hook;
  CommunicationHook communication_hook;
  UnitReducedHook unit_reduced_hook;

  // The options of the backward that began last.
  const BackwardOptions& current() const { return current_; }
  void begin_backward();

  // Passes the gradients that a unit has captured to the communicators. Called under unit.mutex.
  void issue(Unit& unit, FlatGradient& gradient);
  // Waits for all reductions in flight and adds their results to the leaves' gradients. These may then be used on the
  // current stream.
  void finish_all();
  // Waits for the current backward's reductions in flight and drops their results. Finishes older reductions.
  void drop_current();

  // Describes which reductions were issued in this backward: "end of backward after 3 reductions, the last one of
  // 'l0'".
  std::string describe_backward() const;

  // Returns the largest number of bytes of passing gradient buffers that were in use at a time in this backward.
  int64_t passing_nbytes() const;

  // The numbers of collectives that were issued.
  int64_t reduce_scatters() const { return reduce_scatters_; }
  int64_t all_reduces() const { return all_reduces_; }

 private:
  struct InFlight {
    Unit* unit;
    FlatGradient* gradient;
    std::unique_ptr<Reduction> reduction;
    int64_t backward;
    int64_t issued;  // for the trace
  };

  void note_issue(const Unit& unit, const FlatGradient& gradient);
  InFlight take_oldest();
  void finish(InFlight& oldest);
  bool advance(InFlight& latest);
  void unit_reduced(InFlight& finished);

  void settle_on_host() const;
  void trim_groups();

  const EngineStreams& streams_;
  const bool to_host_;
  BufferPool pool_;
  TraceRecorder& trace_;
  BackwardOptions current_;
  std::recursive_mutex mutex_;
  std::deque<InFlight> in_flight_;
  int64_t backward_ = 0;
  int64_t issued_in_backward_ = 0;
  const Unit* last_issued_ = nullptr;
  std::set<std::shared_ptr<Communicator>> used_groups_;  // groups used since memory was last trimmed
  std::vector<int64_t> passing_;  // bytes of each unit whose reduction was issued in this backward
  int64_t reduce_scatters_ = 0;
  int64_t all_reduces_ = 0;
};

}  // namespace fsdp
