// What the ranks of a group on one host tell each other about their collectives, in memory that they share.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>

#include "comm/collective_header.h"
#include "comm/shared_memory.h"

namespace fsdp {

// [Note: a board in shared memory]
// For each of its last kDepth collectives each rank has a post: header, and where its payload lies in its heap. It
// writes the post, then sets its number to that of the collective (release); others that see the number (acquire) see
// the post and the payload. A second step of a collective has a place and a number of its own. When a rank has read all
// that it needs of a collective it counts it as finished; a post is used again once all ranks have finished the
// collective that it was for. Each change counts up one word, on which ranks sleep that wait for a change (a futex).
//
// Threads: one a rank.
class ShmBoard {
 public:
  static constexpr uint64_t kDepth = 64;
  static constexpr int64_t kNowhere = -1;

  struct Post {
    char header[kHeaderBytes];
    int64_t payload;  // in the rank's heap, or kNowhere
    int64_t flags;    // those behind kInlineFlagWords, likewise
    int64_t second;   // of the second step
  };

  // The memory that a board takes; it begins as zeros.
  static int64_t nbytes(int ranks);
  ShmBoard(std::shared_ptr<SharedMemory> memory, int rank, int ranks);

  // Whether `rank` has finished the collective that this rank's post for `sequence` was used for before.
  bool has_room(int rank, uint64_t sequence) const { return sequence < kDepth || finished(rank, sequence - kDepth); }
  // To be written, and then published, step by step (0, 1).
  Post& own(uint64_t sequence) const;
  void publish(uint64_t sequence, int step);
  // A rank's post once it has published this step; before, null.
  const Post* of(int rank, uint64_t sequence, int step) const;

  // This rank has read all of the collectives below `sequence`.
  void finish_below(uint64_t sequence);
  // Whether a rank has, or all ranks have, finished this collective. Threads: safe.
  bool finished(int rank, uint64_t sequence) const;
  bool all_finished(uint64_t sequence) const;

  // Something else has changed that ranks may wait for.
  void ring() const;
  // To wait for a change: read changes(), look whether what is waited for is there, and if not, await_change().
  uint32_t changes() const;
  // Returns when there was a change since `seen`, or after `limit`, or before. Sleeps but for the first microseconds.
  void await_change(uint32_t seen, std::chrono::milliseconds limit) const;

 private:
  struct Slot;
  struct Column;  // a rank's
  struct Bell;
  Bell& bell() const;
  Column& column(int rank) const;

  std::shared_ptr<SharedMemory> memory_;
  const int rank_;
  const int ranks_;
};

}  // namespace fsdp
