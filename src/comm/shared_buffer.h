// Memory that all ranks of a group on one host read, of which each writes its own slice.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>

#include "comm/shared_memory.h"

namespace fsdp {

// [Note: readers of a shared buffer]
// Slices of all ranks, end to end, are the buffer; nobody copies what he can read where it lies. So an owner may write
// to its slice only when nobody reads what was there. Readings are numbered: all ranks begin the same ones in the same
// order (they are collectives), and each counts, in a word of its own in front of the buffer, those that it has ended.
// A rank that has begun n of them, and is about to write, waits until all counts have come to n: those that others have
// not begun yet are among them. Whoever waits has ended its own readings before; so nobody waits for a rank that waits
// for it.
//
// Ranks make a buffer without each other: first it is a range of addresses where a rank has memory of its own for its
// slice. When it is shared, the memory of all takes the place of that at the same addresses, with what was there, so
// that tensors in it do not notice.
//
// Threads: one a rank.
class SharedBuffer : public std::enable_shared_from_this<SharedBuffer> {
 public:
  // Zeros. Throws where there are no addresses.
  SharedBuffer(int rank, int ranks, int64_t nbytes);
  ~SharedBuffer();
  SharedBuffer(const SharedBuffer&) = delete;
  SharedBuffer& operator=(const SharedBuffer&) = delete;

  // Of the memory of all for it, zeros, which share() gives it. `number`: counts the shared buffers of a group, from 1.
  int64_t memory_nbytes() const;
  void share(std::shared_ptr<SharedMemory> memory, int number);
  bool is_shared() const { return memory_ != nullptr; }
  int number() const { return number_; }

  // 1-D, kByte, all of it; keeps this object.
  at::Tensor tensor();
  char* data() const;
  // Whether the tensor is all of the buffer; whether it is this rank's slice, the size of the buffer over the ranks.
  bool is_whole(const at::Tensor& tensor) const;
  bool is_own_slice(const at::Tensor& tensor) const;

  // This rank's readings. They end in any order: the count moves when none is left.
  void begin_reading();
  void end_reading();
  bool is_reading() const { return ended_ < begun_; }
  // Whether a rank has ended all readings that this one has begun.
  bool has_read(int rank) const;

 private:
  struct Count;
  Count& count(int rank) const;
  char* own_slice() const { return data() + rank_ * (nbytes_ / ranks_); }

  const int rank_;
  const int ranks_;
  const int64_t nbytes_;
  char* const addresses_;
  std::shared_ptr<SharedMemory> memory_;  // at these addresses, once it is shared
  int number_ = 0;
  uint64_t begun_ = 0;
  uint64_t ended_ = 0;
};

// Those of one group that are alive.
class SharedBuffers {
 public:
  void add(const std::shared_ptr<SharedBuffer>& buffer);
  // The one of which the tensor is this rank's slice; of which it is the whole. Null: none.
  std::shared_ptr<SharedBuffer> of_slice(const at::Tensor& tensor);
  std::shared_ptr<SharedBuffer> of_whole(const at::Tensor& tensor);

 private:
  // The one with the largest address that is not above this one.
  std::shared_ptr<SharedBuffer> at_or_below(const void* address);

  std::map<const char*, std::weak_ptr<SharedBuffer>> buffers_;  // by their addresses
};

}  // namespace fsdp
