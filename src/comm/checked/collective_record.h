// The flight record: this rank's last collectives, and the progress of each.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "comm/collective_header.h"

namespace fsdp::comm {

struct CollectiveEntry {
  using Clock = std::chrono::steady_clock;
  enum class State : uint8_t { kIssued, kWaiting, kDone, kFailed };

  int group = 0;        // returned by FlightRecord::add_group
  uint64_t number = 0;  // counts this rank's collectives in the group, from 0
  CollectiveIdentity identity;
  State state = State::kIssued;
  Clock::time_point issued;
  Clock::time_point waited;  // when the wait began; set by FlightRecord::waiting
  Clock::time_point ended;   // when it ended; for kDone and kFailed

  // The time at which it entered its state.
  Clock::time_point since() const;
  // "waiting for 12.3 s", "done after 200 ms, 12.1 s ago", …
  std::string progress(Clock::time_point now) const;
};

// A ring buffer of the last collectives of all groups that report to it. Recording allocates no memory once names of
// that length have been recorded. Threads: safe; a watchdog reads while the rank's own threads write.
class FlightRecord {
 public:
  using Clock = CollectiveEntry::Clock;
  static constexpr size_t kCapacity = 64;

  // `rank`: the rank of this process, for the text.
  explicit FlightRecord(int rank, size_t capacity = kCapacity);

  // `name`: appears in the text if there are several groups.
  int add_group(std::string name);

  // Refers to one collective, even after a later one has taken its place in the ring.
  struct Ticket {
    uint64_t serial = 0;
  };
  Ticket issue(int group, const CollectiveIdentity& identity);
  void waiting(Ticket ticket);
  void done(Ticket ticket);
  void failed(Ticket ticket);

  int rank() const { return rank_; }
  // The time at which a collective of the group last changed its state, or the group was added if it has had none.
  Clock::time_point last_change(int group) const;
  // The number of collectives issued in a group.
  uint64_t issued(int group) const;
  // The collectives that are still in the ring, in order of issue: of one group, or of all groups (no value).
  std::vector<CollectiveEntry> entries(std::optional<int> group = std::nullopt) const;
  // The collective of a group that has been waited for longest.
  std::optional<CollectiveEntry> longest_waiting(int group) const;
  // The collective that was issued last.
  std::optional<CollectiveEntry> last() const;
  std::optional<CollectiveEntry> find(int group, uint64_t number) const;

  // "rank 1, #41 reduce-scatter of 'layer.3' (reduce, generation 7), 1024 elements of Float: waiting for 12.3 s"
  std::string line(const CollectiveEntry& entry, Clock::time_point now) const;
  // The last `lines` collectives, one on each line, oldest first.
  std::string text(size_t lines = kCapacity) const;

 private:
  struct Group {
    std::string name;
    uint64_t issued = 0;
    Clock::time_point last_change = Clock::now();
  };
  CollectiveEntry* entry_of(Ticket ticket) FSDP_REQUIRES(mutex_);  // null if it was overwritten
  void end(Ticket ticket, CollectiveEntry::State state);

  const int rank_;
  mutable base::Mutex mutex_;
  std::vector<CollectiveEntry> ring_ FSDP_GUARDED_BY(mutex_);  // the collective with serial s is at s % size
  uint64_t next_serial_ FSDP_GUARDED_BY(mutex_) = 0;
  std::deque<Group> groups_ FSDP_GUARDED_BY(mutex_);
};

// Returns a time as text: "1.5 s", "20 ms".
std::string seconds_text(CollectiveEntry::Clock::duration time);

}  // namespace fsdp::comm
