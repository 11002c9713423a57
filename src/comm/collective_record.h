// The flight record: what this rank's last collectives were, and how far each has come.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "comm/collective_header.h"

namespace fsdp {

struct CollectiveEntry {
  using Clock = std::chrono::steady_clock;
  enum class State : uint8_t { kIssued, kWaiting, kDone, kFailed };

  int group = 0;        // what FlightRecord::add_group returned
  uint64_t number = 0;  // counts this rank's collectives in the group, from 0
  CollectiveIdentity identity;
  State state = State::kIssued;
  Clock::time_point issued;
  Clock::time_point waited;  // since when; of kWaiting and later states
  Clock::time_point ended;   // of kDone and kFailed

  // Since when it is in its state.
  Clock::time_point since() const;
  // "waited for since 12.3 s", "done after 0.2 s, 12.1 s ago", …
  std::string progress(Clock::time_point now) const;
};

// A ring of the last collectives, in all groups that report to it. Recording allocates nothing once names of their
// length have been seen. Threads: safe; a watchdog reads while the rank's own threads write.
class FlightRecord {
 public:
  using Clock = CollectiveEntry::Clock;
  static constexpr size_t kCapacity = 64;

  // `rank`: this process's, for the text.
  explicit FlightRecord(int rank, size_t capacity = kCapacity);

  // `name`: for the text, where there are several groups.
  int add_group(std::string name);

  // Refers to one collective, also when its place in the ring has been taken by a later one.
  struct Ticket {
    uint64_t serial = 0;
  };
  Ticket issue(int group, const CollectiveIdentity& identity);
  void waiting(Ticket ticket);
  void done(Ticket ticket);
  void failed(Ticket ticket);

  int rank() const { return rank_; }
  // When a collective of the group last changed its state; when the group was added, if it had none.
  Clock::time_point last_change(int group) const;
  // How many collectives were issued in a group.
  uint64_t issued(int group) const;
  // What is still in the ring, in order of issue: of one group, or of all (no value).
  std::vector<CollectiveEntry> entries(std::optional<int> group = std::nullopt) const;
  // The collective of a group that is being waited for longest.
  std::optional<CollectiveEntry> longest_waiting(int group) const;
  // The one issued last.
  std::optional<CollectiveEntry> last() const;
  std::optional<CollectiveEntry> find(int group, uint64_t number) const;

  // "rank 1, #41 reduce-scatter of 'layer.3' (reduce, generation 7), 1024 elements of Float: waited for since 12.3 s"
  std::string line(const CollectiveEntry& entry, Clock::time_point now) const;
  // The last `lines` of them, a line each, oldest first.
  std::string text(size_t lines = kCapacity) const;

 private:
  struct Group {
    std::string name;
    uint64_t issued = 0;
    Clock::time_point last_change = Clock::now();
  };
  CollectiveEntry* entry_of(Ticket ticket);  // under mutex_; null when it is overwritten
  void end(Ticket ticket, CollectiveEntry::State state);

  const int rank_;
  mutable std::mutex mutex_;
  std::vector<CollectiveEntry> ring_;  // the collective with serial s is at s % size
  uint64_t next_serial_ = 0;
  std::deque<Group> groups_;
};

}  // namespace fsdp
