// Gradients on their way over the ranks: which reductions are in flight, when each goes on, who is told of the result.
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
// A reduction goes on while backward computes the next unit's gradients. A reduce-scatter is finished when the next
// unit's is issued: two gradient buffers at a time. One that goes on to an all-reduce over replicas is given that
// second stage when the next unit's is issued, and finished one unit later; so is a plain all-reduce, which itself has
// two steps (sums to their owners, and back): three buffers at a time.
//
// Threads: safe; takes its own lock after the unit's.
class GradientReducer {
 public:
  struct Memory {
    bool keep_memory = false;        // see Options
    bool to_host = false;            // gradients of the shards are in host memory, which the device writes
    BufferPool::Source source = {};  // of gradient buffers
  };
  GradientReducer(const EngineStreams& streams, const Memory& memory, TraceRecorder& trace)
      : streams_(streams),
        to_host_(memory.to_host),
        pool_(streams.device, memory.keep_memory, memory.source),
        trace_(trace) {}

  BufferPool& pool() { return pool_; }
  const BufferPool& pool() const { return pool_; }

  // What the user has set for the backward passes that begin from now on.
  BackwardOptions options;
  // In place of the number of ranks that contribute.
  std::optional<double> divide_factor;
  // See ShardedModule::set_reductions_see_norm.
  bool sees_norm = false;
  // See ShardedModule.
  GradientHook gradient_hook;
  CommunicationHook communication_hook;
  UnitReducedHook unit_reduced_hook;

  // The last backward that began runs with these.
  const BackwardOptions& current() const { return current_; }
  void begin_backward();

  // Hands what a unit has captured to the communicators. Under unit.mutex.
  void issue(Unit& unit, FlatGradient& gradient);
  // Waits for all that is in flight and adds it to the leaves' gradients, which may be used on the current stream then.
  void finish_all();
  // Waits for what is in flight of the current backward, and drops it; finishes what is older.
  void drop_current();

  // Which reductions were issued in this backward: "end of backward after 3 reductions, the last one of 'l0'".
  std::string describe_backward() const;

  // Bytes of gradient buffers that lived at a time in this backward, where they come and go.
  int64_t passing_nbytes() const;

  // How many collectives were issued.
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
  std::set<std::shared_ptr<Communicator>> used_groups_;  // whose memory was not given back since
  std::vector<int64_t> passing_;  // bytes of the units whose reductions were issued in this backward
  int64_t reduce_scatters_ = 0;
  int64_t all_reduces_ = 0;
};

}  // namespace fsdp
