// Memory that ranks on one host share, so that gathers and reductions read in place instead of copying.
//
// For implementers of a Communicator and for code that moves data itself; fully_shard uses it without being asked.
// Threads: as the communicator that it belongs to. All errors of lost ranks are those of its collectives.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "fsdp/collective_id.h"

namespace fsdp {

struct SharedBufferOptions {
  // Whether the contents are needed only while they are read. If true, the memory is returned to the system when all
  // ranks have ended a reading, unless all such buffers of the group take at most an eighth of the memory that the host
  // has left. The contents are undefined after that, unless keeps_contents() is true. Only one reading at a time is
  // allowed, and await_readers must be called before the slice is written.
  bool transient = false;
  // Whether the buffer is write-protected while this rank reads it in place: a write ends the process, with a line that
  // names the buffer.
  bool read_only = false;
  // Whether each rank may write any elements, and not only those of its slice: for groups with takes_any_part(). Call
  // MemorySharing::open before the first write. The gather then only waits until all ranks have issued it.
  bool any_part = false;
};

// Communicator::memory_sharing() returns it. The functions of this class itself are for ranks that share no memory:
// they do nothing, or provide memory of this rank alone.
class MemorySharing {
 public:
  virtual ~MemorySharing() = default;

  // Returns a buffer that all ranks share: `nbytes` (a multiple of size()), zeros, 1-D, kByte. Undefined if ranks do
  // not share memory. Each rank writes only to its own slice. An all_gather whose input is this rank's whole slice
  // moves no data if its output is the buffer; it then *reads* the buffer from wait() until its Work is destroyed. If
  // the output lies elsewhere, it reads until wait() returns. Not collective: share() or the first such gather shares
  // the slices. The memory is freed with the last tensor on the last rank. Options must be the same on all ranks.
  virtual at::Tensor buffer(int64_t /*nbytes*/, const SharedBufferOptions& /*options*/, const CollectiveId& /*id*/) {
    return {};
  }

  // Shares the slices of all shared buffers made so far. Throws on all ranks, with the figures, if memory does not
  // suffice for all of these buffers and for `further_nbytes`, which this rank will need in addition (and which are
  // only counted, not allocated). Does nothing if ranks do not share memory. Collective; blocks.
  virtual void share(int64_t /*further_nbytes*/, const CollectiveId& /*id*/) {}

  // Whether buffers may be written in any part, because all ranks of the group share the memory.
  virtual bool takes_any_part() const { return false; }
  // Shares a buffer, unless it is shared already. All ranks call it, in the same order; blocks.
  virtual void open(const at::Tensor& /*buffer*/, const CollectiveId& /*id*/) {}

  // Waits until no other rank reads this shared buffer any more, in the readings that this rank has issued. A rank must
  // call it before it writes to its slice, after its own readings have ended. Other ranks need not call it.
  virtual void await_readers(const at::Tensor& /*buffer*/, const CollectiveId& /*id*/) {}

  // Whether a transient buffer still has this rank's data: its memory was not returned to the system since this rank's
  // last call, which must have preceded the writing. The first call returns false. Call it after await_readers.
  virtual bool keeps_contents(const at::Tensor& /*buffer*/) { return false; }

  // Returns memory for the input of a reduction, 1-D, kByte, not initialised. Ranks that share memory read it in place,
  // even after a reduce-scatter has ended on this rank: after the call, the caller may drop it but must not write it.
  // It may also be the output of an all-reduce; the caller may use it again when the all-reduce has ended.
  virtual at::Tensor reduction_input(int64_t nbytes);
  // Whether other ranks read reduction_input() in place.
  virtual bool reads_in_place() const { return false; }
};

}  // namespace fsdp
