// Memory that all ranks of a group on one host read. Each rank writes only its own slice.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "comm/shm/read_only_memory.h"
#include "comm/shm/shared_memory.h"
#include "fsdp/communicator.h"
#include "fsdp/memory_sharing.h"

namespace fsdp::comm {

// [Note: pages that are kept]
// Returning pages to the system and taking them again costs ten times as much as copying data into them: the system
// clears them, and each process faults them in one by one and unmaps them. So memory that is used again and again (the
// blocks of the heap in every backward, the transient buffers in every gather) is kept as long as it is little compared
// with what the host has left.
//
// The transient buffers of a group. Threads: safe.
struct TransientMemory {
  explicit TransientMemory(std::function<int64_t()> spare) : spare(std::move(spare)) {}
  bool stays() const { return nbytes <= spare(); }

  const std::function<int64_t()> spare;  // bytes that may be kept
  std::atomic<int64_t> nbytes{0};        // total of all shared transient buffers
};

// [Note: readers of a shared buffer]
// The buffer consists of the slices of all ranks, end to end. No rank copies what it can read in place. So an owner may
// write to its slice only when no rank reads its previous contents. Readings are numbered: all ranks begin the same
// readings in the same order (they are collectives). Each rank counts the readings that it has ended, in its own word
// in front of the buffer. A rank that has begun n readings and is about to write waits until all counts have reached n;
// this includes readings that other ranks have not begun yet. A rank that waits has ended its own readings before, so
// no two ranks wait for each other.
//
// The contents of a transient buffer are not needed after all ranks have read it: the last rank to end a reading
// releases the memory before it counts that reading as ended. All ranks have reached the same reading then, because no
// rank writes for the next one before all have counted this one. If there is plenty of memory, it is kept
// with its contents ([Note: pages that are kept]); a count of releases tells a rank whether its own are still there.
//
// Threads: one for each rank.
class SharedBuffer : public std::enable_shared_from_this<SharedBuffer> {
 public:
  // The rank that makes the buffer, the number of the buffer in the group (counted from 1 in the same order on all
  // ranks), and its name.
  struct Place {
    int rank = 0;
    int ranks = 1;
    int number = 0;
    std::string name = {};  // for texts: "rank 1: 'layers.0'"
  };
  // Makes a buffer of zeros. Throws if no address range is available.
  SharedBuffer(Place place, int64_t nbytes, const SharedBufferOptions& options,
               std::shared_ptr<TransientMemory> transient_memory);
  ~SharedBuffer();
  SharedBuffer(const SharedBuffer&) = delete;
  SharedBuffer& operator=(const SharedBuffer&) = delete;

  // The sizes of the header in front of the buffer and of the whole in the shared memory. The memory passed to share()
  // is zeros.
  int64_t header_nbytes() const;
  int64_t memory_nbytes() const { return header_nbytes() + data_nbytes(); }
  bool transient() const { return options_.transient; }
  void share(std::shared_ptr<SharedMemory> memory);
  bool is_shared() const { return memory_ != nullptr; }
  int number() const { return place_.number; }
  // Returns the bytes of the private pages that this rank holds for the buffer until it is shared.
  int64_t own_nbytes() const;

  // Returns the whole buffer: 1-D, kByte. The tensor keeps this object alive.
  at::Tensor tensor();
  char* data() const;
  int64_t data_nbytes() const;  // in whole pages
  // Whether the tensor is the whole buffer; whether it is this rank's slice, of the size of the buffer divided by the
  // number of ranks.
  bool is_whole(const at::Tensor& tensor) const;
  bool is_own_slice(const at::Tensor& tensor) const;

  // Begin and end this rank's readings. They may end in any order: the count advances when none is left.
  void begin_reading();
  // Called when all slices are complete, so the data can be read in place. Makes the buffer read-only if that is asked
  // for.
  void protect();
  void end_reading();
  bool is_reading() const { return ended_ < begun_; }
  // Whether `rank` has ended all readings that this rank has begun.
  bool has_read(int rank) const;
  // Whether no memory was released since this rank's last call; false for the first call. No rank may be reading.
  bool keeps_contents();

 private:
  struct Count;
  struct Ends;
  Count& count(int rank) const;
  Ends& ends() const;
  char* own_slice() const { return data() + place_.rank * (nbytes_ / place_.ranks); }
  void release_if_last();

  const Place place_;
  const int64_t nbytes_;
  const SharedBufferOptions options_;
  const std::shared_ptr<TransientMemory> transient_memory_;
  char* const addresses_;
  std::shared_ptr<SharedMemory> memory_;  // at these addresses, once it is shared
  std::optional<ReadOnlyMemory> read_only_;
  std::optional<uint64_t> known_releases_;  // those of keeps_contents()
  uint64_t begun_ = 0;
  uint64_t ended_ = 0;
};

}  // namespace fsdp::comm
