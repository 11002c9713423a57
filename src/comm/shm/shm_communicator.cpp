#include "comm/shm/shm_communicator.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <functional>
#include <utility>

#include "base/interruption.h"
#include "comm/collective_shapes.h"
#include "comm/cpu_communicator.h"
#include "comm/failable.h"
#include "comm/failure.h"
#include "comm/fake_communicator.h"
#include "comm/group_family.h"
#include "comm/payload_count.h"
#include "comm/shm/group_memory.h"
#include "comm/shm/shared_buffers.h"
#include "comm/shm/shm_channels.h"
#include "comm/shm/shm_collectives.h"
#include "comm/shm/shm_exchange.h"
#include "comm/shm/shm_messages.h"
#include "fsdp/memory_sharing.h"

namespace fsdp::comm {
namespace {

// A gather whose result is read in place, until this object is destroyed.
class SharedReading final : public Work {
 public:
  SharedReading(std::unique_ptr<Work> gather, std::shared_ptr<SharedBuffer> buffer, std::shared_ptr<ShmBoard> board,
                bool in_place)
      : gather_(std::move(gather)), buffer_(std::move(buffer)), board_(std::move(board)), in_place_(in_place) {
    buffer_->begin_reading();
  }
  ~SharedReading() override { end(); }
  void wait() override {
    gather_->wait();
    in_place_ ? buffer_->protect() : end();
  }

 private:
  void end() {
    if (!buffer_) return;
    std::exchange(buffer_, nullptr)->end_reading();
    board_->ring();
  }

  std::unique_ptr<Work> gather_;
  std::shared_ptr<SharedBuffer> buffer_;
  std::shared_ptr<ShmBoard> board_;
  const bool in_place_;
};

class ShmCommunicator final : public Communicator, public MemorySharing, public Failable {
 public:
  // `memory`: of the board, followed by that of the channels.
  ShmCommunicator(std::shared_ptr<Communicator> host, const RankHosts& heaps,
                  const std::shared_ptr<SharedMemory>& memory)
      : host_(std::move(host)),
        heaps_(heaps),
        context_(std::make_shared<ShmContext>()),
        advancing_(std::make_shared<Advancing>()),
        in_flight_(context_),
        transient_(std::make_shared<TransientMemory>(heaps.spare)),
        sent_(host_->rank(), host_->size()) {
    context_->host = host_;
    context_->board = std::make_shared<ShmBoard>(memory, host_->rank(), host_->size());
    context_->heap = heaps_.own;
    context_->heaps = heaps_.of_ranks;
    for (int rank = 0; rank < size(); ++rank) context_->names.push_back(host_->world_rank(rank));
    messages_ = std::make_unique<ShmMessages>(
        context_,
        std::make_unique<ShmChannels>(memory, ShmBoard::nbytes(size()), rank(), context_->heaps, context_->heap));
    add_to_family_of(*host_, advancing_);
  }
  static int64_t memory_nbytes(int ranks) { return ShmBoard::nbytes(ranks) + ShmChannels::nbytes(ranks); }

  int rank() const override { return host_->rank(); }
  int size() const override { return host_->size(); }
  std::string backend() const override { return "shm"; }

  std::unique_ptr<Work> all_gather(at::Tensor output, at::Tensor input, const CollectiveId& id) override {
    check_all_gather(output, input, size(), id);
    check_on_host(input, "all-gather", id);
    if (auto buffer = buffers_.of_slice(input)) return read_shared(std::move(buffer), std::move(output), id);
    sent_.add_for_each_peer(input.nbytes());
    return issue<ShmAllGather>(std::move(output), input, id);
  }

  std::unique_ptr<Work> reduce_scatter(at::Tensor output, at::Tensor input, const ReduceOptions& options,
                                       const CollectiveId& id, std::vector<uint64_t>* flags) override {
    check_reduce_scatter(output, input, size(), id);
    check_on_host(input, "reduce-scatter", id);
    sent_.add_for_each_peer(input.nbytes() / static_cast<size_t>(size()));
    return issue<ShmReduceScatter>(std::move(output), input, options, id, flags);
  }

  std::unique_ptr<Work> all_reduce(at::Tensor output, at::Tensor tensor, const ReduceOptions& options,
                                   const CollectiveId& id, std::vector<uint64_t>* flags) override {
    check_all_reduce(output, tensor, id);
    check_on_host(tensor, "all-reduce", id);
    sent_.add_all_reduce(tensor.numel(), static_cast<int64_t>(tensor.element_size()));
    base::MutexLock use(advancing_->in_use);
    auto collective = begin<ShmAllReduce>(std::move(output), tensor, options, id, flags);
    advancing_->add(collective);
    return make_pending_work(std::move(collective), advancing_);
  }

  std::unique_ptr<Work> broadcast(at::Tensor tensor, int root, const CollectiveId& id) override {
    check_broadcast(tensor, root, size(), id);
    check_on_host(tensor, "broadcast", id);
    if (rank() == root) sent_.add_for_each_peer(tensor.nbytes());
    return issue<ShmBroadcast>(tensor, root, id);
  }

  std::unique_ptr<Work> all_to_all(at::Tensor output, at::Tensor input, const SplitCounts& counts,
                                   const CollectiveId& id) override {
    check_all_to_all(output, input, counts, size(), id);
    check_own_part(counts, rank(), id);
    check_on_host(input, "all-to-all", id);
    for (int peer = 0; peer < size(); ++peer) {
      sent_.add(peer, static_cast<uint64_t>(counts.send[static_cast<size_t>(peer)]) * input.element_size());
    }
    return issue<ShmAllToAll>(output, input, counts, id);
  }

  std::unique_ptr<Work> send(at::Tensor tensor, int to, const CollectiveId& id) override {
    check_message(tensor, to, rank(), size(), "send", id);
    check_on_host(tensor, "message", id);
    check_not_failed();
    check_present(*this, to);
    base::MutexLock use(advancing_->in_use);
    at::AutoDispatchBelowADInplaceOrView no_autograd;
    sent_.add(to, tensor.nbytes());
    return messages_->send(tensor, to, id);
  }

  std::unique_ptr<Work> recv(at::Tensor output, int from, const CollectiveId& id) override {
    check_message(output, from, rank(), size(), "receive", id);
    check_on_host(output, "message", id);
    check_not_failed();
    return messages_->recv(output, from, id);
  }

  std::vector<std::string> all_gather_bytes(const std::string& bytes, const CollectiveId& id) override {
    base::MutexLock use(advancing_->in_use);
    at::AutoDispatchBelowADInplaceOrView no_autograd;
    sent_.add_for_each_peer(bytes.size());
    const auto collective = begin<ShmGatherBytes>(bytes, id);
    advancing_->finish(*collective);
    return collective->take_result();
  }

  std::shared_ptr<Communicator> subgroup(const std::vector<int>& members, const CollectiveId& id) override {
    std::shared_ptr<Communicator> host = host_->subgroup(members, id);
    return make_group_over(std::move(host), heaps_.of(members));
  }

  std::shared_ptr<Communicator> twin() override {
    if (!twin_) twin_ = make_group_over(host_->twin(), heaps_);
    return twin_;
  }

  MemorySharing& memory_sharing() override { return *this; }
  at::Tensor buffer(int64_t nbytes, const SharedBufferOptions& options, const CollectiveId& id) override;
  void share(int64_t further_nbytes, const CollectiveId& id) override { buffers_.share_all(*this, further_nbytes, id); }
  bool takes_any_part() const override { return true; }
  void open(const at::Tensor& buffer, const CollectiveId& id) override;
  void await_readers(const at::Tensor& buffer, const CollectiveId& id) override;
  bool keeps_contents(const at::Tensor& buffer) override {
    const auto known = buffers_.of_whole(buffer);
    return known && known->keeps_contents();
  }
  at::Tensor reduction_input(int64_t nbytes) override { return heaps_.own->take(nbytes); }
  bool reads_in_place() const override { return true; }

  bool carries_identity() const override { return true; }
  std::shared_ptr<MeetingPoint> meeting_point() const override { return host_->meeting_point(); }
  std::chrono::milliseconds timeout() const override { return host_->timeout(); }
  int world_rank(int rank) const override { return host_->world_rank(rank); }
  void abort(const std::string& reason) override { host_->abort(reason); }
  void trim() override { heaps_.own->trim(heaps_.spare()); }
  std::vector<uint64_t> bytes_sent_to() const override { return with_bytes_of(twin_.get(), sent_.by_rank()); }

  GroupFamily* family() const override { return family_of(*host_); }
  void check_not_failed() const override { check_group_not_failed(*host_); }
  void check_complete() const override { check_group_complete(*host_); }
  std::vector<Loss> losses() const override { return losses_of(*host_); }

 private:
  void check_reader(int peer, ShmContext::Clock::duration waited, const std::function<std::string()>& waits) const;
  [[noreturn]] void fail(const Failure& failure) const;
  static void check_on_host(const at::Tensor& tensor, const char* kind, const CollectiveId& id) {
    TORCH_CHECK(tensor.is_cpu(), describe(kind, id), ": ranks share host memory; this tensor is on ", tensor.device());
  }

  // Blocks if the buffer is not shared yet, but first does this rank's part in what others may wait for meanwhile.
  std::unique_ptr<Work> read_shared(std::shared_ptr<SharedBuffer> buffer, at::Tensor output, const CollectiveId& id) {
    if (!buffer->is_shared()) SharedBuffers::share(buffer, *this, id);
    const bool in_place = buffer->is_whole(output);
    if (!in_place) sent_.add_for_each_peer(output.nbytes() / static_cast<size_t>(size()));
    auto gather = issue<ShmSharedGather>(buffer, std::move(output), id);
    return std::make_unique<SharedReading>(std::move(gather), std::move(buffer), context_->board, in_place);
  }

  template <typename C, typename... Arguments>
  std::unique_ptr<Work> issue(Arguments&&... arguments) {
    base::MutexLock use(advancing_->in_use);
    return make_pending_work(begin<C>(std::forward<Arguments>(arguments)...), advancing_);
  }

  template <typename C, typename... Arguments>
  std::shared_ptr<C> begin(Arguments&&... arguments) FSDP_REQUIRES(advancing_->in_use) {
    at::AutoDispatchBelowADInplaceOrView no_autograd;
    in_flight_.make_room(*advancing_);
    auto collective = std::make_shared<C>(context_, std::forward<Arguments>(arguments)...);
    in_flight_.add(collective);
    return collective;
  }

  std::shared_ptr<Communicator> host_;
  RankHosts heaps_;
  std::shared_ptr<ShmContext> context_;
  std::shared_ptr<Advancing> advancing_;
  ShmInFlight in_flight_;
  std::unique_ptr<ShmMessages> messages_;
  SharedBuffers buffers_;
  std::shared_ptr<TransientMemory> transient_;
  int shared_buffers_ = 0;  // number of buffers made so far
  PayloadCount sent_;
  std::shared_ptr<Communicator> twin_;
};

}  // namespace

at::Tensor ShmCommunicator::buffer(int64_t nbytes, const SharedBufferOptions& options, const CollectiveId& id) {
  TORCH_CHECK(nbytes > 0 && nbytes % size() == 0, describe("shared buffer", id), ": ", nbytes,
              " bytes cannot be cut into slices for ", size(), " ranks");
  const SharedBuffer::Place place{rank(), size(), ++shared_buffers_,
                                  c10::str("rank ", world_rank(rank()), ": '", id.name, "'")};
  const auto buffer = std::make_shared<SharedBuffer>(place, nbytes, options, transient_);
  buffers_.add(buffer);
  return buffer->tensor();
}

void ShmCommunicator::open(const at::Tensor& tensor, const CollectiveId& id) {
  const auto buffer = buffers_.of_whole(tensor);
  TORCH_CHECK(buffer, describe("write", id), ": not a shared buffer of this group");
  if (!buffer->is_shared()) SharedBuffers::share(buffer, *this, id);
}

void ShmCommunicator::await_readers(const at::Tensor& tensor, const CollectiveId& id) {
  const auto buffer = buffers_.of_whole(tensor);
  TORCH_CHECK(buffer, describe("write", id), ": not a shared buffer of this group");
  TORCH_CHECK(!buffer->is_reading(), describe("write", id), ": rank ", world_rank(rank()), " itself still reads it");
  const auto began = ShmContext::Clock::now();
  StoppedRankWarning stopped;
  const auto waits = [&] {
    return c10::str("rank ", world_rank(rank()), " waits to write to its part of '", id.name, "'");
  };
  for (int peer = 0; peer < size(); ++peer) {
    context_->await([&] { return buffer->has_read(peer); },
                    [&] {
                      const auto waited = ShmContext::Clock::now() - began;
                      stopped.look(waited, context_->heaps, context_->names, waits);
                      check_reader(peer, waited, waits);
                    });
  }
}

void ShmCommunicator::check_reader(int peer, ShmContext::Clock::duration waited,
                                   const std::function<std::string()>& waits) const {
  check_not_failed();
  if (const std::vector<Loss> lost = losses(); !lost.empty()) {
    fail({Failure::Kind::kRankLost,
          c10::str(waits(), ": rank ", world_rank(lost.front().rank), " is lost: ", lost.front().why)});
  }
  if (base::Interruption::is_requested()) {
    fail({Failure::Kind::kInterrupted,
          c10::str(waits(), ": it was interrupted while rank ", world_rank(peer), " reads it")});
  }
  if (waited < timeout()) return;
  const auto seconds = [](ShmContext::Clock::duration time) { return std::chrono::duration<double>(time).count(); };
  fail({Failure::Kind::kRankLate, c10::str(waits(), ": rank ", world_rank(peer), " is late; waited ", seconds(waited),
                                           " s (timeout ", seconds(timeout()), " s) for it to read the part")});
}

void ShmCommunicator::fail(const Failure& failure) const {
  host_->abort(failure.reason);
  failure.raise();
}

std::shared_ptr<Communicator> make_shm_group(std::shared_ptr<Communicator> gloo, const RankHosts& ranks) {
  const auto memory =
      memory_of_all(*gloo, ShmCommunicator::memory_nbytes(gloo->size()), {"board in shared memory", 0, Pass::kSetup});
  return std::make_shared<ShmCommunicator>(std::move(gloo), ranks, memory);
}

}  // namespace fsdp::comm
