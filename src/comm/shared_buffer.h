// Memory that all ranks of a group on one host read, of which each writes its own slice.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "comm/read_only_memory.h"
#include "comm/shared_memory.h"
#include "fsdp/communicator.h"

namespace fsdp {

// [Note: pages that are kept]
// Pages that were given back to the system and are taken again cost ten times what is copied into them: the system
// clears them, each process meets them one by one, and unmaps them. So what is used again and again, the heap's blocks
// in every backward, the passing buffers in every gather, is kept as long as it is little beside what the host has
// left.
//
// Of the passing buffers of a group. Threads: safe.
struct PassingMemory {
  explicit PassingMemory(std::function<int64_t()> spare) : spare(std::move(spare)) {}
  bool stays() const { return nbytes <= spare(); }

  const std::function<int64_t()> spare;  // bytes that may be kept
  std::atomic<int64_t> nbytes{0};        // of all that are shared
};

// [Note: readers of a shared buffer]
// Slices of all ranks, end to end, are the buffer; nobody copies what he can read where it lies. So an owner may write
// to its slice only when nobody reads what was there. Readings are numbered: all ranks begin the same ones in the same
// order (they are collectives), and each counts, in a word of its own in front of the buffer, those that it has ended.
// A rank that has begun n of them, and is about to write, waits until all counts have come to n: those that others have
// not begun yet are among them. Whoever waits has ended its own readings before; so nobody waits for a rank that waits
// for it.
//
// What a passing buffer holds is not needed when all have read it: the rank that is the last to end a reading gives the
// memory back before it counts that reading as ended. All have come to the same reading then, as nobody writes for the
// next one before all have counted this one. Where there is plenty of memory, it stays: [Note: pages that are kept].
//
// Ranks make a buffer without each other: first it is a range of addresses where a rank has memory of its own for its
// slice. When it is shared, the memory of all takes the place of that at the same addresses, with what was there, so
// that tensors in it do not notice.
//
// Threads: one a rank.
class SharedBuffer : public std::enable_shared_from_this<SharedBuffer> {
 public:
  // Who makes it, which of the group's buffers it is, counted from 1 in the same order on all ranks, and what for.
  struct Place {
    int rank = 0;
    int ranks = 1;
    int number = 0;
    std::string name = {};  // for texts: "rank 1: 'layers.0'"
  };
  // Zeros. Throws where there are no addresses.
  SharedBuffer(Place place, int64_t nbytes, const SharedBufferOptions& options,
               std::shared_ptr<PassingMemory> passing_memory);
  ~SharedBuffer();
  SharedBuffer(const SharedBuffer&) = delete;
  SharedBuffer& operator=(const SharedBuffer&) = delete;

  // What is in front of it, and all, in the memory of all: zeros, which share() gives it.
  int64_t header_nbytes() const;
  int64_t memory_nbytes() const { return header_nbytes() + data_nbytes(); }
  bool passing() const { return options_.passing; }
  void share(std::shared_ptr<SharedMemory> memory);
  bool is_shared() const { return memory_ != nullptr; }
  int number() const { return place_.number; }
  // Bytes of pages that this rank has of its own for it, until it is shared.
  int64_t own_nbytes() const;

  // 1-D, kByte, all of it; keeps this object.
  at::Tensor tensor();
  char* data() const;
  int64_t data_nbytes() const;  // in whole pages
  // Whether the tensor is all of the buffer; whether it is this rank's slice, the size of the buffer over the ranks.
  bool is_whole(const at::Tensor& tensor) const;
  bool is_own_slice(const at::Tensor& tensor) const;

  // This rank's readings. They end in any order: the count moves when none is left.
  void begin_reading();
  // All slices are there: the data are there to be read in place.
  void protect();
  void end_reading();
  bool is_reading() const { return ended_ < begun_; }
  // Whether a rank has ended all readings that this one has begun.
  bool has_read(int rank) const;

 private:
  struct Count;
  struct Ends;
  Count& count(int rank) const;
  Ends& ends() const;
  char* own_slice() const { return data() + place_.rank * (nbytes_ / place_.ranks); }
  void give_back_if_last();

  const Place place_;
  const int64_t nbytes_;
  const SharedBufferOptions options_;
  const std::shared_ptr<PassingMemory> passing_memory_;
  char* const addresses_;
  std::shared_ptr<SharedMemory> memory_;  // at these addresses, once it is shared
  std::optional<ReadOnlyMemory> read_only_;
  uint64_t begun_ = 0;
  uint64_t ended_ = 0;
};

}  // namespace fsdp
