// Collectives in flight in host memory, which the caller's own thread brings to their end.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>

#include "fsdp/communicator.h"

namespace fsdp {

// Posts what other ranks need when it is made, without blocking.
class PendingCollective {
 public:
  virtual ~PendingCollective() = default;
  // Counts the collectives of a group in order of issue.
  virtual uint64_t sequence() const = 0;
  // Does what other ranks need from this one to finish, which is all that needs nothing but their having
  // issued the collective.
  virtual void advance() {}
  // Blocks until the result is in place.
  virtual void finish() = 0;
  // Its Work is gone before it was waited for: nothing of the caller's may be written any more.
  virtual void drop() {}
};

// The collectives in flight that have something to advance, in order of issue. While a rank waits for one collective,
// others may wait for another: nobody gets stuck if each rank first does its part in those that were issued before.
class Advancing {
 public:
  void add(std::weak_ptr<PendingCollective> collective) { queue_.push_back({std::move(collective), nullptr}); }
  // Also where its Work is dropped: other ranks cannot finish without.
  void add_and_keep(const std::shared_ptr<PendingCollective>& collective) {
    queue_.push_back({collective, collective});
  }
  void advance_up_to(uint64_t sequence);
  // Finishes a collective, after this rank's part in those before it.
  void finish(PendingCollective& collective);
  void advance_all();

 private:
  struct Entry {
    std::weak_ptr<PendingCollective> collective;
    std::shared_ptr<PendingCollective> kept;
  };
  std::deque<Entry> queue_;
};

std::unique_ptr<Work> make_pending_work(std::shared_ptr<PendingCollective> collective,
                                        std::shared_ptr<Advancing> advancing);

}  // namespace fsdp
