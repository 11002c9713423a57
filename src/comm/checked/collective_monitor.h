// The state that the checked communicators of one process share: the flight record, the step, the watchdog, the dump.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/checked/collective_record.h"
#include "comm/checked/watchdog.h"
#include "fsdp/communicator.h"
#include "fsdp/debug_options.h"

namespace fsdp::comm {

// Threads: safe, except for add_group, add_control and abort: one thread at a time, as for the communicators.
class CollectiveMonitor {
 public:
  // `rank`: the rank of this process among all processes.
  CollectiveMonitor(int rank, DebugOptions options);

  const DebugOptions& options() const { return options_; }
  FlightRecord& record() { return *record_; }
  const FlightRecord& record() const { return *record_; }

  // The step counts backward passes that reduce gradients. All ranks must advance it at the same position in the order
  // of collectives.
  int64_t step() const { return step_.load(std::memory_order_relaxed); }
  void next_step() { step_.fetch_add(1, std::memory_order_relaxed); }
  bool checks_now() const { return options_.collective_check.covers(step()); }

  // Adds a group to record and to watch. Returns its number in the record. Throws if watchdog_warning is negative or
  // not shorter than the group's timeout. Does not keep the communicator alive.
  int add_group(const std::shared_ptr<Communicator>& communicator, const std::string& name);
  // Does the same for the messages from one rank of a group to another, one of which is this rank. `group`: the group's
  // name.
  int add_channel(const Communicator& communicator, int from, int to, const std::string& group);
  // Adds the group over which fingerprints are exchanged, so that abort() ends it too.
  void add_control(const std::shared_ptr<Communicator>& control) { groups_.push_back(control); }

  // Ends all groups of this rank (Communicator::abort), because ranks have diverged in one of them.
  void abort(const std::string& reason);

  // Writes `reason` and the last collectives to a file in the dump folder, after a collective has failed. Overwrites
  // the file when the next one fails. Returns the text about the file for the error, or "" without a dump folder.
  std::string dump(const std::string& reason);

 private:
  const DebugOptions options_;
  std::shared_ptr<FlightRecord> record_;
  std::atomic<int64_t> step_{0};
  std::vector<std::weak_ptr<Communicator>> groups_;
  Watchdog watchdog_;
};

}  // namespace fsdp::comm
