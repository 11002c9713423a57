// The board on which the ranks of a group on one host post their collectives, in memory that they share.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>

#include "comm/collective_header.h"
#include "comm/shm/shared_memory.h"

namespace fsdp::comm {

// [Note: a board in shared memory]
// Each rank has a post for each of its last kDepth collectives: the header and the position of its payload in its heap.
// It writes the post, then sets the post's number to the number of the collective (release); other ranks that see the
// number (acquire) see the post and the payload. A second step of a collective has its own position and number. When a
// rank has read all that it needs of a collective, it counts the collective as finished. A post is reused once all
// ranks have finished the collective that it was for. Each change increments one word, on which ranks sleep while they
// wait for a change (a futex).
//
// Threads: one for each rank.
class ShmBoard {
 public:
  static constexpr uint64_t kDepth = 64;
  static constexpr int64_t kNowhere = -1;

  struct Post {
    char header[kHeaderBytes];
    int64_t payload;  // offset in the rank's heap, or kNowhere
    int64_t flags;    // offset of the flag words after the first kInlineFlagWords, or kNowhere
    int64_t second;   // offset of the second step's payload, or kNowhere
  };

  // Returns the bytes of memory that a board takes. The memory must be zeros at first.
  static int64_t nbytes(int ranks);
  ShmBoard(std::shared_ptr<SharedMemory> memory, int rank, int ranks);

  // Whether `rank` has finished the collective for which this rank's post for `sequence` was last used.
  bool has_room(int rank, uint64_t sequence) const { return sequence < kDepth || finished(rank, sequence - kDepth); }
  // Returns this rank's post, which must be written and then published, step by step (0, 1).
  Post& own(uint64_t sequence) const;
  void publish(uint64_t sequence, int step);
  // Returns a rank's post once the rank has published this step; null before.
  const Post* of(int rank, uint64_t sequence, int step) const;

  // Records that this rank has finished all collectives below `sequence`.
  void finish_below(uint64_t sequence);
  // Whether one rank has, or all ranks have, finished this collective. Threads: safe.
  bool finished(int rank, uint64_t sequence) const;
  bool all_finished(uint64_t sequence) const;

  // Announces another change that ranks may wait for.
  void ring() const;
  // To wait for a condition: read changes(), test the condition, and if it does not hold, call await_change().
  uint32_t changes() const;
  // Returns after a change since `seen`, after `limit`, or earlier. Sleeps, except for the first microseconds.
  void await_change(uint32_t seen, std::chrono::milliseconds limit) const;

 private:
  struct Slot;
  struct Column;  // of one rank
  struct Bell;
  Bell& bell() const;
  Column& column(int rank) const;

  std::shared_ptr<SharedMemory> memory_;
  const int rank_;
  const int ranks_;
};

}  // namespace fsdp::comm
