// Messages between each two ranks of a host: lists in memory that the ranks share.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "comm/collective_header.h"
#include "comm/shm/shared_heap.h"
#include "comm/shm/shared_memory.h"

namespace fsdp::comm {

// [Note: channels in shared memory]
// The messages from one rank to another are a list in the sender's heap. A letter has the header of a message, the
// position of its payload and, once there is one, the position of the next letter; the position of the first letter is
// in memory that the group has for each pair of ranks. The sender writes a letter, then the position of it (release);
// a receiver that sees the position (acquire) sees the letter and the payload. There is no limit to their number, so a
// sender never waits. The receiver counts the messages that it has taken. A payload is free once its message is taken,
// a letter once the next message is taken, too, because the receiver finds the next letter through it.
//
// Threads: one for each rank.
class ShmChannels {
 public:
  static constexpr int64_t kNowhere = -1;

  struct Letter {
    const char* header;  // kHeaderBytes
    int64_t payload;     // offset in the sender's heap, or kNowhere
  };

  // Returns the bytes of memory that the channels of a group take. The memory must be zeros at first.
  static int64_t nbytes(int ranks);
  // The channels are in `memory` from `begin` on. `heaps`: of all ranks. `own`: this rank's heap.
  ShmChannels(std::shared_ptr<SharedMemory> memory, int64_t begin, int rank,
              std::vector<std::shared_ptr<SharedMemory>> heaps, std::shared_ptr<SharedHeap> own);
  ~ShmChannels();

  // Appends a message for rank `to`. `payload`: a block of this rank's heap, or undefined. Returns its number, counted
  // from 0.
  uint64_t append(int to, const char* header, const at::Tensor& payload);
  uint64_t appended(int to) const;

  // Whether rank `to` needs this message of this rank no more.
  bool is_taken(int to, uint64_t number) const;

  // Returns message `number` of rank `from`, or null if it has not been sent yet. Valid until it is taken.
  const Letter* find(int from, uint64_t number);
  // Records that this rank needs the message no more. It may not even have been sent yet.
  void take(int from, uint64_t number);

 private:
  struct Channel;  // in the group's memory
  struct StoredLetter;
  struct Outbox;
  struct Inbox;
  Channel& channel(int from, int to) const;
  StoredLetter& stored(int from, int64_t place) const;
  bool look_for_next(int from);

  const std::shared_ptr<SharedMemory> memory_;
  const int64_t begin_;
  const int rank_;
  const std::vector<std::shared_ptr<SharedMemory>> heaps_;
  const std::shared_ptr<SharedHeap> own_;
  std::vector<Outbox> outboxes_;  // by receiver
  std::vector<Inbox> inboxes_;    // by sender
};

}  // namespace fsdp::comm
