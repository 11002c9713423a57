// Collectives in flight in host memory, which the caller's own thread completes.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>

#include "base/mutex.h"
#include "fsdp/communicator.h"

namespace fsdp::comm {

// A collective in flight. Its constructor posts what other ranks need, without blocking.
class PendingCollective {
 public:
  virtual ~PendingCollective() = default;
  // The number of this collective in the group, in order of issue.
  virtual uint64_t sequence() const = 0;
  // Does everything that other ranks need from this one to finish and that depends only on their having issued the
  // collective.
  virtual void advance() {}
  // Blocks until the result is in place.
  virtual void finish() = 0;
  // Called if the Work is destroyed before it was waited for: after that, the collective must not write to the caller's
  // memory.
  virtual void discard_result() {}
};

// The collectives in flight that have something to advance, in order of issue. While a rank waits for one collective,
// others may wait for another. No rank gets stuck if each rank first does its part in the collectives issued before.
//
// Threads: one at a time, which holds in_use; but any thread may call settle().
class Advancing {
 public:
  // Held while a thread issues a collective of the group, waits for one or ends one.
  base::Mutex in_use;

  // Does this rank's part in all collectives in flight, unless another thread uses the group: that thread does it.
  void settle();

  void add(std::weak_ptr<PendingCollective> collective) FSDP_REQUIRES(in_use) {
    queue_.push_back({std::move(collective), nullptr});
  }
  // Like add(), but keeps the collective even if its Work is destroyed, because other ranks cannot finish without this
  // rank's part.
  void add_and_keep(const std::shared_ptr<PendingCollective>& collective) FSDP_REQUIRES(in_use) {
    queue_.push_back({collective, collective});
  }
  void advance_up_to(uint64_t sequence) FSDP_REQUIRES(in_use);
  // Does this rank's part in the collectives before this one, then finishes it.
  void finish(PendingCollective& collective) FSDP_REQUIRES(in_use);
  void advance_all() FSDP_REQUIRES(in_use);

 private:
  struct Entry {
    std::weak_ptr<PendingCollective> collective;
    std::shared_ptr<PendingCollective> kept;
  };
  std::deque<Entry> queue_ FSDP_GUARDED_BY(in_use);
};

std::unique_ptr<Work> make_pending_work(std::shared_ptr<PendingCollective> collective,
                                        std::shared_ptr<Advancing> advancing);

}  // namespace fsdp::comm
