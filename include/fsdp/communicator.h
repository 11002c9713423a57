// The communicator: how the ranks of one group exchange tensors.
//
// One interface for every backend (Gloo, a fake one for benchmarks, wrappers that record, delay or fail for tests).
// A collective is *issued* by a call and *waited for* through the returned Work: the call never blocks on other
// ranks. Buffers handed to a collective must stay alive and untouched until its Work was waited for.
//
// Threads: a communicator is used by one thread at a time. All ranks must issue the same collectives in the same
// order; each collective carries an identity that the ranks compare, so that two ranks which issue different ones get
// an error that names both, instead of mixed data.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace fsdp {

class MeetingPoint;

// Which part of a training step a collective belongs to.
enum class Pass : uint8_t { kSetup, kForward, kBackward, kReduce, kUser };
const char* to_string(Pass pass);

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
  // Blocks until the result is in place, or throws what went wrong (naming ranks and collective). Call it once.
  virtual void wait() = 0;
  // Does this rank's next step of a collective that has several (an all-reduce: sends its sums once all contributions
  // are in), so that the rest goes on while this rank computes. May block as wait() does; never required.
  virtual void advance() {}
};

// How the contributions to a reduction are put together: sum over ranks in rank order, then times `scale`. The sum is
// formed in fp32 for bf16 and fp16 contributions.
struct ReduceOptions {
  double scale = 1.0;
};

class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  // "gloo", "fake", …
  virtual std::string backend() const = 0;

  // Gathers `input` (n elements, 1-D, contiguous) of every rank into `output` (size() * n elements) in rank order.
  // `input` may be the slice of `output` that belongs to this rank (in place): then nothing is copied locally.
  virtual std::unique_ptr<Work> all_gather(at::Tensor output, at::Tensor input, const CollectiveId& id) = 0;

  // Reduces `input` (size() * n elements, one dtype for all ranks) over the ranks; `output` (n elements) receives the
  // part of this rank. `output` may have another floating dtype than `input`. `flags` (may be empty; same length on
  // all ranks) holds a bit set that is OR-ed over the ranks, in place, by the time wait() returns.
  virtual std::unique_ptr<Work> reduce_scatter(at::Tensor output, at::Tensor input, const ReduceOptions& options,
                                               const CollectiveId& id, std::vector<uint64_t>* flags = nullptr) = 0;

  // Reduces `tensor` (1-D, contiguous) over the ranks into `output`, which may be the same tensor and may have another
  // floating dtype. `flags` as in reduce_scatter. Sums in rank order on one rank an element, so that all ranks hold
  // the same bits; results travel in the dtype of `tensor`, whose memory is overwritten on the way.
  virtual std::unique_ptr<Work> all_reduce(at::Tensor output, at::Tensor tensor, const ReduceOptions& options,
                                           const CollectiveId& id, std::vector<uint64_t>* flags = nullptr) = 0;

  // Copies `tensor` (1-D, contiguous) of the rank `root` into that of the others.
  virtual std::unique_ptr<Work> broadcast(at::Tensor tensor, int root, const CollectiveId& id) = 0;

  // Every rank's `bytes`, in rank order. Lengths may differ. Blocks.
  virtual std::vector<std::string> all_gather_bytes(const std::string& bytes, const CollectiveId& id) = 0;

  // Returns when every rank has entered. Blocks.
  virtual void barrier(const CollectiveId& id) { all_gather_bytes({}, id); }

  // A group of some of this group's ranks: `members`, ascending, this rank among them; its ranks are the positions in
  // the list. Collective over this group: each rank names the members of its own new group, and the lists must be a
  // partition of this group's ranks, else all ranks throw. Blocks. The new group goes on when this one is gone; a
  // failure in one of them ends both, with an error on all their ranks.
  virtual std::shared_ptr<Communicator> subgroup(const std::vector<int>& members, const CollectiveId& id) = 0;

  // This group once more, with connections of its own: what is issued there does not wait behind what was issued here.
  // Made by the first call, which is collective and blocks; then always the same one.
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

  // What the library keeps with this communicator for as long as it lives.
  std::shared_ptr<void>& attachment() { return attachment_; }

  // Bytes that this rank has sent to each rank (0 for itself) through collectives' payloads so far, its twin's
  // included, headers not counted.
  virtual std::vector<uint64_t> bytes_sent_to() const = 0;
  uint64_t bytes_sent() const {
    uint64_t sum = 0;
    for (uint64_t bytes : bytes_sent_to()) sum += bytes;
    return sum;
  }

 private:
  std::shared_ptr<void> attachment_;
};

// Where ranks meet, from the environment that torchrun and mpirun set.
struct RankEnvironment {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  std::string master_address = "127.0.0.1";
  int master_port = 29500;
};

// Reads RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT (torchrun), or OMPI_COMM_WORLD_RANK,
// PMI_RANK, … (mpirun, with MASTER_ADDR and MASTER_PORT). Without any of them: one rank. Missing or contradictory
// variables: an error that names them.
RankEnvironment rank_environment();

struct GlooOptions {
  std::chrono::milliseconds timeout = std::chrono::minutes(30);
  // Name or address of the interface to use; empty: the one that reaches the master address.
  std::string host;
};

// A communicator over Gloo for the ranks of `environment`, which meet at the TCP store that rank 0 opens at
// master_address:master_port. A port in use is an error that names it. Traffic is neither encrypted nor authenticated:
// use a trusted network.
std::shared_ptr<Communicator> make_gloo_communicator(const RankEnvironment& environment,
                                                     const GlooOptions& options = {});

// A group of `size` ranks of which only `rank` exists: collectives do their local part and return at once, gathers
// repeat this rank's part. For measuring host time; results mean nothing.
std::shared_ptr<Communicator> make_fake_communicator(int rank, int size);

}  // namespace fsdp
