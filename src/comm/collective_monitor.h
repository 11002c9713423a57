// What the checked communicators of one process share: the flight record, the step, the watchdog, the dump.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/collective_record.h"
#include "comm/watchdog.h"
#include "fsdp/communicator.h"
#include "fsdp/debug_options.h"

namespace fsdp {

// Threads: safe, but for add_group, add_control and abort: those of the communicators.
class CollectiveMonitor {
 public:
  // `rank`: of this process among all.
  CollectiveMonitor(int rank, DebugOptions options);

  const DebugOptions& options() const { return options_; }
  FlightRecord& record() { return *record_; }
  const FlightRecord& record() const { return *record_; }

  // The step counts backward passes that reduce gradients, and must be moved on at the same place of the order of
  // collectives on all ranks.
  int64_t step() const { return step_.load(std::memory_order_relaxed); }
  void next_step() { step_.fetch_add(1, std::memory_order_relaxed); }
  bool checks_now() const { return options_.collective_check.covers(step()); }

  // A group to record and to watch; returns its number in the record. Throws when watchdog_warning is set and not
  // shorter than the group's timeout. Does not keep the communicator alive.
  int add_group(const std::shared_ptr<Communicator>& communicator, const std::string& name);
  // The group over which fingerprints go.
  void add_control(const std::shared_ptr<Communicator>& control) { groups_.push_back(control); }

  // Ends all groups of this rank (Communicator::abort): its ranks have diverged in one of them.
  void abort(const std::string& reason);

  // After a collective has failed: writes the last of them to the dump folder, below `reason`, once and again when the
  // next one fails. Returns what the error is to say about it, empty without a folder.
  std::string dump(const std::string& reason);

 private:
  const DebugOptions options_;
  std::shared_ptr<FlightRecord> record_;
  std::atomic<int64_t> step_{0};
  std::vector<std::weak_ptr<Communicator>> groups_;
  Watchdog watchdog_;
};

}  // namespace fsdp
