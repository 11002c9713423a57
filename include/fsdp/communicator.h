// The communicator: how the ranks of one group exchange tensors.
//
// One interface for every backend: Gloo in host memory, NCCL on NVIDIA GPUs, a fake one for benchmarks, and wrappers
// that record, delay or fail for tests. A collective is *issued* by a call and *waited for* through the returned Work.
// The call never blocks on other ranks. Buffers passed to a collective must stay alive and untouched until its Work was
// waited for.
//
// Threads: a communicator is used by one thread at a time. All ranks must issue the same collectives in the same order.
// Messages between two ranks (send, recv) are apart from that order.
// Each collective carries an identity that the ranks compare, so that two ranks which issue different collectives get
// an error that names both, instead of mixed data. (When they compare: NcclOptions::compare_every_collective.)
//
// Devices and streams: the tensors of one collective are on one device.
// - In host memory: wait() blocks until the result is in place.
// - On a device with streams, over NCCL: a call enqueues the collective on the stream of that device which is *current*
//   in the calling thread, after all work enqueued there before. wait() makes the stream which is *then* current in the
//   waiting thread wait for the result. Neither waits for the device. The caller thus chooses streams by setting the
//   current one around the call and around wait(). Work enqueued after wait() on the stream that waited may use and
//   overwrite the buffers. To free them or use them on another stream, first make that stream wait for this one by an
//   event. If a Work is destroyed without wait(), the stream that is current at that time waits as well.
// - On a device with streams, over Gloo or the fake communicator: the same, except that over Gloo a call blocks the
//   host until the device has reached the collective and its input is copied to the host, and wait() blocks the host
//   until the other ranks' parts are on this host.
// If ranks have several communicators on one device (a group and its twin), the order of issue over all of them must be
// the same on all ranks: kernels of one may keep kernels of the other from starting.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "fsdp/collective_id.h"
#include "fsdp/errors.h"

namespace fsdp::comm {
class MeetingPoint;
}  // namespace fsdp::comm

namespace fsdp {

class MemorySharing;

// A collective in flight.
class Work {
 public:
  virtual ~Work() = default;
  // Returns when the result is in place, or makes the current stream of a device wait for it (see above). Throws a
  // CommunicationError if the collective failed; it names ranks and collective. Must be called at most once.
  virtual void wait() = 0;
  // Performs this rank's next step of a collective that has several steps, so that the collective can continue while
  // this rank computes. (In an all-reduce, a rank sends its sums once all contributions have arrived.) May block as
  // wait() does. Calling it is never required.
  virtual void advance() {}
};

// Properties of the elements that a reduction stores on this rank, found in the pass that stores them.
struct ReductionSummary {
  bool known = false;       // true if the CPU adds; if false, the other fields are meaningless
  bool finite = true;       // no element is infinite or NaN
  double squared_norm = 0;  // sum of the squares; not finite if `finite` is false
};

// How a reduction combines the contributions: the sum over the ranks in rank order, multiplied by `scale`. For bf16 and
// fp16 contributions the sum is formed in fp32.
//
// NCCL guarantees less. It adds in its own order and in the dtype of the contributions: bf16 and fp16 sums are rounded
// on their way from rank to rank (with some of its algorithms only at the end). For these two dtypes, contributions are
// multiplied before the addition by the largest power of two that is not above `scale` (at most 1; for fp16 at least
// 2^-14), so that means do not overflow, and the sum is multiplied by the rest of `scale`. fp32 and fp64 contributions
// are multiplied by `scale` before the addition. If this rounding matters, reduce in fp32.
struct ReduceOptions {
  double scale = 1.0;
  ReductionSummary* summary = nullptr;  // filled in before wait() returns; null: not wanted
};

// How an all-to-all splits its tensors: the number of elements sent to each rank and received from each rank, in rank
// order.
struct SplitCounts {
  std::vector<int64_t> send;
  std::vector<int64_t> receive;
};

// Elements [begin, begin + numel) of a tensor.
struct ElementRange {
  int64_t begin = 0;
  int64_t numel = 0;
};

// The ranges of each rank, in rank order.
using RankRanges = std::vector<std::vector<ElementRange>>;

class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  // "gloo", "shm", "shm+gloo" (on several hosts), "nccl", "fake", …
  virtual std::string backend() const = 0;

  // Gathers `input` (n elements, 1-D, contiguous) of every rank into `output` (size() * n elements) in rank order.
  // `input` may be this rank's slice of `output` (in place), which avoids the local copy.
  virtual std::unique_ptr<Work> all_gather(at::Tensor output, at::Tensor input, const CollectiveId& id) = 0;

  // Whether this communicator has all_gather_ranges, for tensors in host memory.
  virtual bool gathers_ranges() const { return false; }

  // An all-gather in place of parts that lie apart: gathers the elements of `tensor` (1-D, contiguous, of equal size
  // and dtype on all ranks) that are in the ranges of a rank from that rank into the other ranks' tensors. Elements in
  // no range stay as they are. `ranges`: size() lists, the same on all ranks; they do not overlap and may be empty.
  // Spares the copies around an all_gather where a rank's part is not one slice. Each range is a message of its own, so
  // this pays for large ones. Throws if gathers_ranges() is false, which is the default.
  virtual std::unique_ptr<Work> all_gather_ranges(at::Tensor tensor, const RankRanges& ranges, const CollectiveId& id);

  // Reduces `input` (size() * n elements, the same dtype on all ranks) over the ranks; `output` (n elements) receives
  // the part of this rank. `output` may have another floating dtype than `input`. `flags` (may be empty; same length on
  // all ranks) contains a bit set that is OR-ed over the ranks in place, before wait() returns. Over NCCL the flags
  // travel between the hosts, and wait() blocks the host until all ranks have issued the collective. It does not block
  // if all bits of all words are ones on this rank, because they cannot change (so set unused bits too).
  virtual std::unique_ptr<Work> reduce_scatter(at::Tensor output, at::Tensor input, const ReduceOptions& options,
                                               const CollectiveId& id, std::vector<uint64_t>* flags = nullptr) = 0;

  // Reduces `tensor` (1-D, contiguous) over the ranks into `output`, which may be the same tensor and may have another
  // floating dtype. `flags` as in reduce_scatter. Each element is summed in rank order on one rank, so that all ranks
  // get the same bits (NCCL, too, adds once and copies). Results travel in the dtype of `tensor`, whose memory is
  // overwritten on the way.
  virtual std::unique_ptr<Work> all_reduce(at::Tensor output, at::Tensor tensor, const ReduceOptions& options,
                                           const CollectiveId& id, std::vector<uint64_t>* flags = nullptr) = 0;

  // Copies `tensor` (1-D, contiguous) of rank `root` into `tensor` of the other ranks.
  virtual std::unique_ptr<Work> broadcast(at::Tensor tensor, int root, const CollectiveId& id) = 0;

  // Sends each rank a part of `input` and receives a part of `output` from each rank. Both tensors are 1-D, contiguous,
  // of one dtype and do not overlap; their parts lie in rank order without gaps. This rank's own part is copied. Counts
  // (size() each, zeros allowed, their sums the sizes of the tensors) may differ between pairs of ranks. The count that
  // one rank sends must be the count that the other expects. If not, over Gloo the receiver throws an error that names
  // both ranks and counts, which ends the group; NCCL does not notice the difference: the waiting rank runs into the
  // timeout, or data are mixed. With the fake communicator, other ranks' parts are zeros.
  virtual std::unique_ptr<Work> all_to_all(at::Tensor output, at::Tensor input, const SplitCounts& counts,
                                           const CollectiveId& id) = 0;

  // Sends `tensor` (any number of dimensions, contiguous) to rank `to`, which must receive it with the same identity,
  // dtype and sizes. The k-th message that a rank sends to another one is the k-th that the other receives from it,
  // whatever else the two issue meanwhile; there is no limit to the messages on their way. Neither the call nor the
  // destruction of its Work waits for the receiver, so a sender need not wait at all: the message arrives all the same,
  // unless the group is destroyed before. (Over Gloo, its destruction waits up to ten seconds for receivers.)
  // `tensor` is kept alive until then, and must not be written before. After wait() it may be written; wait() returns
  // when the message has left this rank's memory, over Gloo when the receiver has it. Over NCCL the current stream, not
  // the host, waits until the receiver takes it, so streams of two ranks must not both send first. Messages in host
  // memory travel between the hosts there, and no stream waits for them.
  virtual std::unique_ptr<Work> send(at::Tensor tensor, int to, const CollectiveId& id) = 0;

  // Receives a message of rank `from` into `output`. If the sender's message differs, wait() throws an error that names
  // both ranks and messages, which ends the group. (Over NCCL, if every collective is compared.) Before it blocks,
  // wait() does this rank's later steps of all collectives in flight (Work::advance) in this group and in all groups
  // made from it or with it, because the sender may wait for them; groups that another thread uses at that moment are
  // left to that thread.
  virtual std::unique_ptr<Work> recv(at::Tensor output, int from, const CollectiveId& id) = 0;

  // Returns every rank's `bytes`, in rank order. Lengths may differ. Blocks.
  virtual std::vector<std::string> all_gather_bytes(const std::string& bytes, const CollectiveId& id) = 0;

  // Returns when every rank has entered. Blocks.
  virtual void barrier(const CollectiveId& id) { all_gather_bytes({}, id); }

  // Makes a group of some of this group's ranks: `members`, ascending, which include this rank. Ranks of the new group
  // are the positions in the list. Collective over this group: each rank names the members of its own new group, and
  // the lists must be a partition of this group's ranks, otherwise all ranks throw. Blocks. The new group stays usable
  // after this one is destroyed. A failure in one of them ends both, with an error on all their ranks.
  virtual std::shared_ptr<Communicator> subgroup(const std::vector<int>& members, const CollectiveId& id) = 0;

  // Returns a second group of the same ranks: a collective issued there does not wait for collectives issued here. It
  // has connections of its own, except that a group over several hosts with shared memory shares its groups of hosts
  // and of places with its twin. The first call makes the twin; it is collective and blocks. Later calls return the
  // same one.
  virtual std::shared_ptr<Communicator> twin() = 0;

  // Whether every collective compares its identity (CollectiveId, kind, sizes, dtypes) over the ranks before data are
  // trusted. If not, fully_shard adds checks (DebugOptions::collective_check).
  virtual bool carries_identity() const { return false; }

  // The store through which the ranks of this group, and only they, exchange messages while the group itself is busy or
  // stuck. Null if the backend has none. The checks and the watchdog of DebugOptions use it.
  virtual std::shared_ptr<comm::MeetingPoint> meeting_point() const { return nullptr; }

  // The time after which an unfinished collective is an error. Zero if unknown.
  virtual std::chrono::milliseconds timeout() const { return std::chrono::milliseconds(0); }

  // The number by which errors name a rank of this group: its rank in the original group that this one was derived
  // from.
  virtual int world_rank(int rank) const { return rank; }

  // Ends this group and the groups made from it or with it, on all ranks as far as the backend can notify them:
  // collectives in flight and later ones throw `reason`. For a group in which ranks have diverged. Does nothing by
  // default. Threads: one at a time, like the rest.
  virtual void abort(const std::string& /*reason*/) {}

  // Releases memory that this group (not its twin) keeps for reuse. Allowed only while none of its collectives is in
  // flight. Ranks that share memory keep at most an eighth of the memory that their host has left. Does nothing by
  // default.
  virtual void trim() {}

  // The memory that this communicator shares among ranks. By default it shares none.
  virtual MemorySharing& memory_sharing();

  // Data that the library attaches to this communicator for its lifetime.
  std::shared_ptr<void>& attachment() { return attachment_; }

  // Bytes that this rank has sent to each rank (0 for itself) as payload of collectives so far, including its twin's,
  // without headers. NCCL chooses its own routes: there, the bytes that each rank has to get from this one, as if sent
  // directly.
  virtual std::vector<uint64_t> bytes_sent_to() const = 0;
  uint64_t bytes_sent() const {
    uint64_t sum = 0;
    for (uint64_t bytes : bytes_sent_to()) sum += bytes;
    return sum;
  }

 private:
  std::shared_ptr<void> attachment_;
};

}  // namespace fsdp
