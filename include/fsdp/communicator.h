// The communicator: how the ranks of one group exchange tensors.
//
// One interface for every backend (Gloo in host memory, NCCL on NVIDIA GPUs, a fake one for benchmarks, wrappers that
// record, delay or fail for tests). A collective is *issued* by a call and *waited for* through the returned Work: the
// call never blocks on other ranks. Buffers handed to a collective must stay alive and untouched until its Work was
// waited for.
//
// Threads: a communicator is used by one thread at a time. All ranks must issue the same collectives in the same
// order; each collective carries an identity that the ranks compare, so that two ranks which issue different ones get
// an error that names both, instead of mixed data. (When they compare: NcclOptions::compare_every_collective.)
//
// Devices and streams: the tensors of one collective are on one device.
// - In host memory: wait() blocks until the result is in place.
// - On a device with streams, over NCCL: a call enqueues the collective on the stream of that device which is *current*
//   in the calling thread, behind all that was enqueued there before; wait() makes the stream which is current in the
//   waiting thread *then* wait for the result. Neither waits for the device. So the caller chooses streams, by setting
//   the current one around the call and around wait(). Behind wait(), what is enqueued on the stream that waited may
//   use and overwrite the buffers; whoever frees them or uses them on another stream first orders that stream behind
//   this one by an event. A Work that is destroyed without wait() makes the stream that is current then wait, too.
// - On a device with streams, over Gloo or the fake communicator: the same, but a call over Gloo blocks the host until
//   the device has come to the collective and its input is copied to the host, and wait() until the other ranks' parts
//   are on this host.
// On ranks with several communicators on one device (a group and its twin) the order of issue over all of them must be
// the same on all ranks: kernels of one may keep those of the other from starting.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fsdp/pass.h"

namespace fsdp {

class MeetingPoint;

// What a collective is for. Ranks compare all of it before they trust the data that they receive.
struct CollectiveId {
  std::string name;         // unit name, or the purpose ("clip_grad_norm_")
  uint64_t generation = 0;  // how many collectives of this name and pass came before
  Pass pass = Pass::kUser;
};

// A collective in flight.
class Work {
 public:
  virtual ~Work() = default;
  // The result is in place behind it: for the host, or for the current stream of a device (see above). Or throws what
  // went wrong (naming ranks and collective). Call it once.
  virtual void wait() = 0;
  // Does this rank's next step of a collective that has several (an all-reduce: sends its sums once all contributions
  // are in), so that the rest goes on while this rank computes. May block as wait() does; never required.
  virtual void advance() {}
};

// How the contributions to a reduction are put together: sum over ranks in rank order, then times `scale`. The sum is
// formed in fp32 for bf16 and fp16 contributions.
//
// NCCL promises less. It adds in an order of its own, in the dtype of the contributions: bf16 and fp16 sums are rounded
// on their way from rank to rank (by some of its algorithms only at the end). For these two dtypes contributions are
// multiplied by the largest power of two that is not above `scale` (at most 1; for fp16 at least 2^-14) before they are
// added, so that means do not overflow, and the sum by what remains of `scale`; for fp32 and fp64, by `scale` before.
// Reduce in fp32 where that matters.
struct ReductionSummary;
struct ReduceOptions {
  double scale = 1.0;
  ReductionSummary* summary = nullptr;  // is filled in by the time wait() returns; null: not asked for
};

// What a reduction has seen of the elements that this rank gets, as they are stored, in the pass that stores them.
struct ReductionSummary {
  bool known = false;       // where the CPU adds; else the rest says nothing
  bool finite = true;       // none is infinite or NaN
  double squared_norm = 0;  // the sum of their squares; not finite where `finite` is false
};

// How an all-to-all splits its tensors: elements that go to each rank and come from each rank, in rank order.
struct SplitCounts {
  std::vector<int64_t> send;
  std::vector<int64_t> receive;
};

struct SharedBufferOptions {
  // What it holds is needed only while it is read: when all ranks have ended a reading, its memory goes back to the
  // system, unless all such buffers of the group are at most an eighth of what the host has left; what it reads as then
  // is not defined. One reading at a time, and await_readers before the slice is written.
  bool passing = false;
  // A write of this rank to the buffer while it reads it there ends the process, with a line that names the buffer.
  bool read_only = false;
};

class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  // "gloo", "shm", "shm+gloo" (on several hosts), "nccl", "fake", …
  virtual std::string backend() const = 0;

  // Gathers `input` (n elements, 1-D, contiguous) of every rank into `output` (size() * n elements) in rank order.
  // `input` may be the slice of `output` that belongs to this rank (in place): then nothing is copied locally.
  virtual std::unique_ptr<Work> all_gather(at::Tensor output, at::Tensor input, const CollectiveId& id) = 0;

  // Reduces `input` (size() * n elements, one dtype for all ranks) over the ranks; `output` (n elements) receives the
  // part of this rank. `output` may have another floating dtype than `input`. `flags` (may be empty; same length on
  // all ranks) holds a bit set that is OR-ed over the ranks, in place, by the time wait() returns. Over NCCL it travels
  // between the hosts, and wait() blocks the host until all ranks have issued the collective; not if all bits of all
  // words are ones here, since nothing can change them (set the unused ones, too).
  virtual std::unique_ptr<Work> reduce_scatter(at::Tensor output, at::Tensor input, const ReduceOptions& options,
                                               const CollectiveId& id, std::vector<uint64_t>* flags = nullptr) = 0;

  // Reduces `tensor` (1-D, contiguous) over the ranks into `output`, which may be the same tensor and may have another
  // floating dtype. `flags` as in reduce_scatter. Sums in rank order on one rank an element, so that all ranks hold
  // the same bits (NCCL, too, adds once and copies); results travel in the dtype of `tensor`, whose memory is
  // overwritten on the way.
  virtual std::unique_ptr<Work> all_reduce(at::Tensor output, at::Tensor tensor, const ReduceOptions& options,
                                           const CollectiveId& id, std::vector<uint64_t>* flags = nullptr) = 0;

  // Copies `tensor` (1-D, contiguous) of the rank `root` into that of the others.
  virtual std::unique_ptr<Work> broadcast(at::Tensor tensor, int root, const CollectiveId& id) = 0;

  // Sends each rank a part of `input` and receives a part of `output` from each: both 1-D, contiguous, of one dtype and
  // without common memory, their parts in rank order without gaps. This rank's own part is copied. Counts (size() each,
  // zeros allowed, their sums the sizes of the tensors) may differ between pairs of ranks; what one rank sends to
  // another must be what that one expects from it. Where it is not, over Gloo the receiver throws an error that names
  // both ranks and counts, which ends the group; NCCL does not notice: it ends with the timeout of whoever waits, or
  // mixes data. The fake communicator receives zeros from other ranks.
  virtual std::unique_ptr<Work> all_to_all(at::Tensor output, at::Tensor input, const SplitCounts& counts,
                                           const CollectiveId& id) = 0;

  // Every rank's `bytes`, in rank order. Lengths may differ. Blocks.
  virtual std::vector<std::string> all_gather_bytes(const std::string& bytes, const CollectiveId& id) = 0;

  // Returns when every rank has entered. Blocks.
  virtual void barrier(const CollectiveId& id) { all_gather_bytes({}, id); }

  // A group of some of this group's ranks: `members`, ascending, this rank among them; its ranks are the positions in
  // the list. Collective over this group: each rank names the members of its own new group, and the lists must be a
  // partition of this group's ranks, else all ranks throw. Blocks. The new group goes on when this one is gone; a
  // failure in one of them ends both, with an error on all their ranks.
  virtual std::shared_ptr<Communicator> subgroup(const std::vector<int>& members, const CollectiveId& id) = 0;

  // This group once more: a collective that is issued there does not wait for those that were issued here. It has
  // connections of its own, but for a group over several hosts with shared memory, which shares its groups of hosts and
  // of places with its twin. Made by the first call, which is collective and blocks; then always the same one.
  virtual std::shared_ptr<Communicator> twin() = 0;

  // Whether every collective compares its identity (CollectiveId, kind, sizes, dtypes) over the ranks before data is
  // trusted. Where it does not, fully_shard adds checks (DebugOptions::collective_check).
  virtual bool carries_identity() const { return false; }

  // The store where the ranks of this group, and nobody else, can leave notes for one another while the group itself is
  // busy or stuck; null: there is none. Checks and the watchdog of DebugOptions go through it.
  virtual std::shared_ptr<MeetingPoint> meeting_point() const { return nullptr; }

  // After how long a collective that does not end is an error; zero: not known.
  virtual std::chrono::milliseconds timeout() const { return std::chrono::milliseconds(0); }

  // How errors are to name a rank of this group: its number in the group that this one was made from, first of all.
  virtual int world_rank(int rank) const { return rank; }

  // Ends this group and those made from it or with it, on all ranks as far as the backend can tell them: what is in
  // flight or issued later throws `reason`. For a group in which ranks have diverged. Does nothing by default. Threads:
  // as the rest.
  virtual void abort(const std::string& /*reason*/) {}

  // Gives back memory of this group (not its twin) that is kept to be used again. Only where none of its collectives
  // is in flight. Ranks that share memory keep what is at most an eighth of what their host has left. Does nothing by
  // default.
  virtual void trim() {}

  // -- memory that this communicator provides; by default, none of its own --

  // A buffer of all ranks: `nbytes` (a multiple of size()), zeros, 1-D, kByte; undefined where ranks do not share
  // memory. Each rank writes to its own slice alone. An all_gather whose input is this rank's slice, as a whole, moves
  // nothing where its output is the buffer, and *reads* it from wait() until its Work is destroyed; where the output
  // lies elsewhere, until wait() returns. Not collective: share_buffers() or the first such gather shares the slices.
  // Memory goes with the last tensor, on the last rank. Options must be the same on all ranks.
  virtual at::Tensor shared_buffer(int64_t /*nbytes*/, const SharedBufferOptions& /*options*/,
                                   const CollectiveId& /*id*/) {
    return {};
  }

  // Shares the slices of all shared buffers that were made so far. Throws on all ranks, with the figures, where memory
  // is wanting for all of them together with what this rank will need besides: `further_nbytes`, which only counts.
  // Where ranks do not share memory: nothing. Collective; blocks.
  virtual void share_buffers(int64_t /*further_nbytes*/, const CollectiveId& /*id*/) {}

  // Returns when no other rank reads this shared buffer any more, as far as readings go that this rank has issued: a
  // rank that is about to write to its slice calls it first, when its own readings have ended. Other ranks need not.
  virtual void await_readers(const at::Tensor& /*buffer*/, const CollectiveId& /*id*/) {}

  // Memory for the input of a reduction, 1-D, kByte, not initialised. Where ranks share memory they read it where it
  // lies, also when a reduce-scatter is over on this rank: after the call it may be dropped, but not written; it may
  // be the output of an all-reduce, too, and is the caller's again when that is over.
  virtual at::Tensor reduction_input(int64_t nbytes);
  // Whether reduction_input() is such memory.
  virtual bool reads_in_place() const { return false; }

  // What the library keeps with this communicator for as long as it lives.
  std::shared_ptr<void>& attachment() { return attachment_; }

  // Bytes that this rank has sent to each rank (0 for itself) through collectives' payloads so far, its twin's
  // included, headers not counted. Over NCCL, which chooses its own ways: what each rank has to get from this one, sent
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

// Where ranks meet, from the environment that torchrun, mpirun and srun set.
struct RankEnvironment {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  std::string master_address = "127.0.0.1";
  int master_port = 29500;
};

// Reads RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT (torchrun), or OMPI_COMM_WORLD_RANK,
// PMI_RANK, MV2_COMM_WORLD_RANK, … (mpirun, with MASTER_ADDR and MASTER_PORT), or SLURM_PROCID, SLURM_STEP_NUM_TASKS, …
// where srun started the process: there the first host of the step and a port that job and step give stand for
// MASTER_ADDR and MASTER_PORT if these are not set. Without any of them: one rank. Missing or contradictory variables,
// and variables of launchers that are not known: an error that names them.
RankEnvironment rank_environment();

struct GlooOptions {
  std::chrono::milliseconds timeout = std::chrono::minutes(30);
  // Name or address of the interface to use; empty: the one that reaches the master address.
  std::string host;
};

// A communicator over Gloo for the ranks of `environment`, which meet at the TCP store that rank 0 opens at
// master_address:master_port. A port in use is an error that names it. Traffic is neither encrypted nor authenticated:
// use a trusted network. Tensors on a device are copied to pinned host memory and back.
std::shared_ptr<Communicator> make_gloo_communicator(const RankEnvironment& environment,
                                                     const GlooOptions& options = {});

// A communicator over memory that the ranks of one host share, for tensors on the CPU (those on a device are copied, as
// over Gloo). They meet as for Gloo, and a Gloo group of the same ranks remains, which notices ranks that are lost.
// An error where ranks cannot reach each other's memory: on several hosts (see make_cpu_communicator), in containers
// that see different processes, or of different users. Memory has no name: nothing stays behind, however ranks end, and
// no other user can open it.
std::shared_ptr<Communicator> make_shm_communicator(const RankEnvironment& environment,
                                                    const GlooOptions& options = {});

// The best communicator for ranks on the CPU: shared memory if all of them can reach each other's; shared memory within
// hosts and Gloo among them, if each of several hosts has the same number of ranks, two or more, in a row; else Gloo.
// On several hosts sums are formed within a host first, in fp32 for bf16 and fp16 also between hosts. There a
// collective ends when all ranks of a host have waited for it, or for a later one of the group or its twin, or called
// its advance(); the order of issue over the two must be the same on all ranks, and one thread at a time uses them.
struct ChosenCommunicator {
  std::shared_ptr<Communicator> communicator;
  std::string reason;  // the same on all ranks: "all 4 ranks share the memory of this host"
};
ChosenCommunicator make_cpu_communicator(const RankEnvironment& environment, const GlooOptions& options = {});

struct NcclOptions {
  // For what the host waits for: other ranks that shall come, their flags and bytes, NCCL's set-up if it does not
  // block.
  std::chrono::milliseconds timeout = std::chrono::minutes(30);
  // Index of the CUDA device; none: the local rank.
  std::optional<int> device;
  // Whether NCCL's own calls block until they are done. If not, `timeout` bounds them, too (ncclConfig_t::blocking).
  bool blocking = true;
  // Ranks compare what they issue through their hosts. Always with each gather of bytes, barrier and reduction that has
  // flags: a hash of all collectives issued so far goes with these, so that a difference is found there at the latest,
  // behind the collectives that mixed data. With this on, with each collective, before its wait() returns: wait() then
  // blocks the host until all ranks have issued it.
  bool compare_every_collective = false;
  // As in GlooOptions, for what goes through the hosts.
  std::string host;
};

// A communicator over NCCL, for tensors on one CUDA device, which is this rank's alone. What NCCL cannot do (flags,
// bytes, the meeting) goes through a Gloo group of the same ranks. The NCCL library is looked for at run time: in the
// file that the environment variable FSDP_NCCL_LIBRARY names, else the one that LibTorch has loaded, else libnccl.so.2
// where libraries are found. Errors, which say what to do: no CUDA device, no NCCL library or one that is too old, or
// fsdp.cpp built without NCCL's headers.
//
// When a collective fails on a rank, its NCCL communicators are aborted, which ends their kernels, and those of the
// other ranks with them. The first call that notices throws, and so do all later ones. Destroying a communicator waits
// for what was issued through it on the device.
std::shared_ptr<Communicator> make_nccl_communicator(const RankEnvironment& environment,
                                                     const NcclOptions& options = {});

// A group of `size` ranks of which only `rank` exists: collectives do their local part and return at once, gathers
// repeat this rank's part. For measuring host time; results mean nothing.
std::shared_ptr<Communicator> make_fake_communicator(int rank, int size);

}  // namespace fsdp
