#include "comm/hosts/hosts_communicator.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <c10/util/intrusive_ptr.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "comm/collective_identities.h"
#include "comm/collective_shapes.h"
#include "comm/cpu_communicator.h"
#include "comm/failable.h"
#include "comm/fake_communicator.h"
#include "comm/group_family.h"
#include "comm/hosts/hosts_collectives.h"
#include "comm/shm/resident_pages.h"
#include "fsdp/memory_sharing.h"

namespace fsdp::comm {
namespace {

// A buffer of this host's ranks that the communicator has given out.
struct HostBuffer {
  c10::weak_intrusive_ptr<c10::StorageImpl> storage;
  char* data = nullptr;
  int64_t nbytes = 0;
  int number = 0;  // number of the buffer in the group, counted from 1
  bool shared = false;
};

class HostBuffers {
 public:
  void add(const at::Tensor& buffer) {
    std::erase_if(buffers_, [](const HostBuffer& one) { return one.storage.expired(); });
    buffers_.push_back({buffer.storage().getWeakStorageImpl(), static_cast<char*>(buffer.mutable_data_ptr()),
                        static_cast<int64_t>(buffer.nbytes()), ++count_});
  }
  // Returns the buffer that this tensor covers, or null if there is none.
  const HostBuffer* find(const at::Tensor& tensor) const {
    const auto found = std::find_if(buffers_.begin(), buffers_.end(), [&](const HostBuffer& one) {
      return one.data == tensor.const_data_ptr() && one.nbytes == static_cast<int64_t>(tensor.nbytes()) &&
             !one.storage.expired();
    });
    return found == buffers_.end() ? nullptr : &*found;
  }

  // Returns slice `rank` of `size` of each buffer that is not shared yet, if anything was written to it. The group of
  // this host does not keep these slices when it shares the buffers.
  struct Written {
    c10::intrusive_ptr<c10::StorageImpl> storage;
    char* place;
    std::string bytes;
  };
  std::vector<Written> written(int rank, int size) const {
    std::vector<Written> all;
    for (const HostBuffer& one : buffers_) {
      const auto nbytes = static_cast<size_t>(one.nbytes / size);
      char* const place = one.data + nbytes * static_cast<size_t>(rank);
      const auto storage = one.shared ? nullptr : one.storage.lock();
      if (!storage || resident_nbytes(place, one.nbytes / size) == 0) continue;
      all.push_back({storage, place, std::string(place, nbytes)});
    }
    return all;
  }
  void set_shared() {
    for (HostBuffer& one : buffers_) one.shared = true;
  }

 private:
  std::vector<HostBuffer> buffers_;
  int count_ = 0;
};

// Keeps the result of a gather open for reading in place, until this object is destroyed.
class HostsReading final : public Work {
 public:
  HostsReading(std::unique_ptr<Work> gather, std::shared_ptr<HostsSharedGather> reading)
      : reading_(std::move(reading)), gather_(std::move(gather)) {}
  void wait() override { gather_->wait(); }
  void advance() override { gather_->advance(); }

 private:
  std::shared_ptr<HostsSharedGather> reading_;
  std::unique_ptr<Work> gather_;
};

class HostsCommunicator final : public Communicator, public MemorySharing, public Failable {
 public:
  HostsCommunicator(HostsContext groups, RankHosts ranks)
      : context_(std::make_shared<HostsContext>(std::move(groups))),
        advancing_(std::make_shared<Advancing>()),
        buffers_(std::make_shared<HostBuffers>()),
        ranks_(std::move(ranks)),
        sent_before_(sent_by_groups()) {
    add_to_family_of(world(), advancing_);
  }
  // Makes the twin of `first`.
  HostsCommunicator(const HostsCommunicator& first, std::shared_ptr<Communicator> world)
      : context_(std::make_shared<HostsContext>(*first.context_)),
        advancing_(first.advancing_),
        buffers_(first.buffers_),
        ranks_(first.ranks_),
        is_twin_(true) {
    context_->world = std::move(world);
    sent_before_ = sent_by_groups();
  }

  int rank() const override { return world().rank(); }
  int size() const override { return world().size(); }
  std::string backend() const override { return "shm+gloo"; }

  std::unique_ptr<Work> all_gather(at::Tensor output, at::Tensor input, const CollectiveId& id) override {
    check_all_gather(output, input, size(), id);
    const HostBuffer* buffer = buffers_->find(output);
    auto whole = identify(CollectiveKind::kAllGather, id, output, output.scalar_type(), 1.0, nullptr);
    if (buffer == nullptr) return make_work(issue<HostsAllGather>(whole, std::move(output), input));
    whole.shared_buffer = buffer->number;
    if (!buffer->shared) share(0, id);
    auto gather = issue<HostsSharedGather>(whole, std::move(output), input);
    return std::make_unique<HostsReading>(make_work(gather), gather);
  }

  std::unique_ptr<Work> reduce_scatter(at::Tensor output, at::Tensor input, const ReduceOptions& options,
                                       const CollectiveId& id, std::vector<uint64_t>* flags) override {
    check_reduce_scatter(output, input, size(), id);
    const auto whole = identify(CollectiveKind::kReduceScatter, id, input, output.scalar_type(), options.scale, flags);
    return make_work(issue<HostsReduceScatter>(whole, std::move(output), input, options, flags));
  }

  std::unique_ptr<Work> all_reduce(at::Tensor output, at::Tensor tensor, const ReduceOptions& options,
                                   const CollectiveId& id, std::vector<uint64_t>* flags) override {
    check_all_reduce(output, tensor, id);
    const auto whole = identify(CollectiveKind::kAllReduce, id, tensor, output.scalar_type(), options.scale, flags);
    return make_work(issue<HostsAllReduce>(whole, std::move(output), tensor, options, flags));
  }

  std::unique_ptr<Work> broadcast(at::Tensor tensor, int root, const CollectiveId& id) override {
    check_broadcast(tensor, root, size(), id);
    return make_work(issue<HostsBroadcast>(identify_broadcast(tensor, root, id), tensor, root));
  }

  std::unique_ptr<Work> all_to_all(at::Tensor output, at::Tensor input, const SplitCounts& counts,
                                   const CollectiveId& id) override {
    check_all_to_all(output, input, counts, size(), id);
    const auto whole = identify(CollectiveKind::kAllToAll, id, output, output.scalar_type(), 1.0, nullptr);
    return make_work(issue<HostsAllToAll>(whole, output, input, counts));
  }

  std::unique_ptr<Work> send(at::Tensor tensor, int to, const CollectiveId& id) override {
    check_message(tensor, to, rank(), size(), "send", id);
    const Way way = way_to(to);
    return way.group.send(std::move(tensor), way.rank, id);
  }

  std::unique_ptr<Work> recv(at::Tensor output, int from, const CollectiveId& id) override {
    check_message(output, from, rank(), size(), "receive", id);
    const Way way = way_to(from);
    return way.group.recv(std::move(output), way.rank, id);
  }

  std::vector<std::string> all_gather_bytes(const std::string& bytes, const CollectiveId& id) override {
    agree_on(id);
    return world().all_gather_bytes(bytes, id);
  }

  std::shared_ptr<Communicator> subgroup(const std::vector<int>& members, const CollectiveId& id) override {
    agree_on(id);
    return make_group_over(world().subgroup(members, id), ranks_.of(members));
  }

  std::shared_ptr<Communicator> twin() override {
    if (!twin_) {
      agree_on({"twin", 0, Pass::kSetup});
      twin_ = std::make_shared<HostsCommunicator>(*this, world().twin());
    }
    return twin_;
  }

  MemorySharing& memory_sharing() override { return *this; }
  // Provides transient buffers only: in others each rank would keep its shard, and the shards of several hosts lie in
  // no common memory.
  at::Tensor buffer(int64_t nbytes, const SharedBufferOptions& options, const CollectiveId& id) override {
    if (!options.transient) return {};
    TORCH_CHECK(nbytes > 0 && nbytes % size() == 0, describe("shared buffer", id), ": ", nbytes,
                " bytes cannot be cut into slices for ", size(), " ranks");
    at::Tensor buffer = context_->local_next->memory_sharing().buffer(nbytes, options, id);
    buffers_->add(buffer);
    return buffer;
  }

  void share(int64_t further_nbytes, const CollectiveId& id) override;

  void await_readers(const at::Tensor& buffer, const CollectiveId& id) override {
    {
      base::MutexLock use(advancing_->in_use);
      advancing_->advance_all();
    }
    context_->local_next->memory_sharing().await_readers(buffer, id);
  }
  bool keeps_contents(const at::Tensor& buffer) override {
    return context_->local_next->memory_sharing().keeps_contents(buffer);
  }
  at::Tensor reduction_input(int64_t nbytes) override {
    return context_->local->memory_sharing().reduction_input(nbytes);
  }
  bool reads_in_place() const override { return context_->local->memory_sharing().reads_in_place(); }

  bool carries_identity() const override { return true; }
  std::shared_ptr<MeetingPoint> meeting_point() const override { return world().meeting_point(); }
  std::chrono::milliseconds timeout() const override { return world().timeout(); }
  int world_rank(int rank) const override { return world().world_rank(rank); }
  void abort(const std::string& reason) override { world().abort(reason); }
  void trim() override {
    for (Communicator* group : groups()) group->trim();
  }

  std::vector<uint64_t> bytes_sent_to() const override {
    std::vector<uint64_t> sent = sent_by_groups();
    for (size_t rank = 0; rank < sent.size(); ++rank) sent[rank] -= sent_before_[rank];
    return with_bytes_of(twin_.get(), std::move(sent));
  }

  GroupFamily* family() const override { return family_of(world()); }
  void check_not_failed() const override { check_group_not_failed(world()); }
  void check_complete() const override { check_group_complete(world()); }
  std::vector<Loss> losses() const override { return losses_of(world()); }

 private:
  Communicator& world() const { return *context_->world; }

  // The group over which messages to and from a rank go, and the rank's number there. Twins share the groups of hosts,
  // so each takes one of the two for its messages, which have an order of their own.
  struct Way {
    Communicator& group;
    int rank;
  };
  Way way_to(int peer) const {
    const int ranks = context_->grid.ranks_per_host;
    if (peer / ranks != context_->host()) return {world(), peer};
    return {is_twin_ ? *context_->local_next : *context_->local, peer % ranks};
  }

  std::vector<Communicator*> groups() const {
    return {context_->world.get(), context_->local.get(), context_->local_next.get(), context_->across.get(),
            context_->across_next.get()};
  }

  // Returns the bytes that this rank's groups have sent. A group's count includes its twin. The first of two twins
  // counts the groups of hosts and places, which both share.
  std::vector<uint64_t> sent_by_groups() const {
    std::vector<uint64_t> sent = world().bytes_sent_to();
    if (is_twin_) return sent;
    const std::vector<uint64_t> local = context_->local->bytes_sent_to(), across = context_->across->bytes_sent_to();
    const auto ranks = local.size(), host = static_cast<size_t>(context_->host());
    for (size_t place = 0; place < ranks; ++place) sent[host * ranks + place] += local[place];
    const auto place = static_cast<size_t>(context_->place());
    for (size_t other = 0; other < across.size(); ++other) sent[other * ranks + place] += across[other];
    return sent;
  }

  template <typename C, typename... Arguments>
  std::shared_ptr<C> issue(Arguments&&... arguments) {
    check_not_failed();
    base::MutexLock use(advancing_->in_use);
    at::AutoDispatchBelowADInplaceOrView no_autograd;
    auto collective = std::make_shared<C>(context_, std::forward<Arguments>(arguments)...);
    advancing_->add_and_keep(collective);
    return collective;
  }

  std::unique_ptr<Work> make_work(std::shared_ptr<HostsCollective> collective) {
    return make_pending_work(std::move(collective), advancing_);
  }

  // Must precede a call that blocks in another group: all ranks reach it, and then none waits for anything issued
  // before.
  void agree_on(const CollectiveId& id) { make_work(issue<HostsAgreement>(identify_bytes({}, id)))->wait(); }

  std::shared_ptr<HostsContext> context_;
  std::shared_ptr<Advancing> advancing_;
  std::shared_ptr<HostBuffers> buffers_;
  RankHosts ranks_;
  bool is_twin_ = false;
  std::vector<uint64_t> sent_before_;
  std::shared_ptr<Communicator> twin_;
};

// If one host has too little memory, all hosts throw.
void HostsCommunicator::share(int64_t further_nbytes, const CollectiveId& id) {
  agree_on(id);
  const std::vector<HostBuffers::Written> written = buffers_->written(rank(), size());
  std::string failure;
  try {
    context_->local_next->memory_sharing().share(further_nbytes, id);
  } catch (const c10::Error& error) {
    failure = error.what_without_backtrace();
  }
  for (const std::string& one : context_->across_next->all_gather_bytes(failure, id)) {
    TORCH_CHECK(one.empty(), one);
  }
  context_->local_next->barrier(id);  // all ranks have moved the contents of their slices
  for (const HostBuffers::Written& one : written) std::memcpy(one.place, one.bytes.data(), one.bytes.size());
  buffers_->set_shared();
}

// Return the ranks of `rank`'s host, and the ranks with the place of `rank` on every host.
std::vector<int> ranks_of_host(int rank, const HostGrid& grid) {
  std::vector<int> ranks;
  const int first = rank / grid.ranks_per_host * grid.ranks_per_host;
  for (int place = 0; place < grid.ranks_per_host; ++place) ranks.push_back(first + place);
  return ranks;
}
std::vector<int> ranks_of_place(int rank, const HostGrid& grid) {
  std::vector<int> ranks;
  for (int host = 0; host < grid.hosts; ++host)
    ranks.push_back(host * grid.ranks_per_host + rank % grid.ranks_per_host);
  return ranks;
}

}  // namespace

std::shared_ptr<Communicator> make_hosts_group(std::shared_ptr<Communicator> gloo, const RankHosts& ranks,
                                               const HostGrid& grid) {
  HostsContext groups;
  const std::vector<int> on_host = ranks_of_host(gloo->rank(), grid), of_place = ranks_of_place(gloo->rank(), grid);
  groups.local = make_group_over(gloo->subgroup(on_host, {"ranks of a host", 0, Pass::kSetup}), ranks.of(on_host));
  groups.across = gloo->subgroup(of_place, {"ranks with one place on their hosts", 0, Pass::kSetup});
  groups.local_next = groups.local->twin();
  groups.across_next = groups.across->twin();
  groups.world = std::move(gloo);
  groups.grid = grid;
  groups.next_sequence = std::make_shared<uint64_t>(0);
  return std::make_shared<HostsCommunicator>(std::move(groups), ranks);
}

}  // namespace fsdp::comm
