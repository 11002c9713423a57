#include "comm/fake_communicator.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/util/Exception.h>

#include <cstring>
#include <numeric>
#include <utility>
#include <vector>

#include "base/device_stream.h"
#include "comm/collective_shapes.h"
#include "comm/payload_count.h"
#include "comm/reduce_kernels.h"
#include "fsdp/backends.h"

namespace fsdp::comm {
namespace {

class EventWork final : public Work {
 public:
  explicit EventWork(c10::Device device) { event_.record_current(device); }
  ~EventWork() override { event_.block_current(); }
  void wait() override { event_.block_current(); }

 private:
  base::DeviceEvent event_;
};

class LocalCommunicator final : public Communicator {
 public:
  LocalCommunicator(int rank, std::vector<int> names, std::string backend)
      : rank_(rank),
        size_(static_cast<int>(names.size())),
        names_(std::move(names)),
        backend_(std::move(backend)),
        sent_(rank_, size_) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string backend() const override { return backend_; }
  int world_rank(int rank) const override { return names_.at(static_cast<size_t>(rank)); }

  std::unique_ptr<Work> all_gather(at::Tensor output, at::Tensor input, const CollectiveId& id) override {
    check_all_gather(output, input, size_, id);
    for (int rank = 0; rank < size_; ++rank) copy_into_slice(output, rank, input);
    sent_.add_for_each_peer(input.nbytes());
    return make_done_work(output.device());
  }

  std::unique_ptr<Work> reduce_scatter(at::Tensor output, at::Tensor input, const ReduceOptions& options,
                                       const CollectiveId& id, std::vector<uint64_t>*) override {
    check_reduce_scatter(output, input, size_, id);
    const auto numel = output.numel();
    sum_in_order(output, {input.narrow(0, rank_ * numel, numel)}, options.scale, options.summary);
    sent_.add_for_each_peer(numel * input.element_size());
    return make_done_work(output.device());
  }

  std::unique_ptr<Work> all_reduce(at::Tensor output, at::Tensor tensor, const ReduceOptions& options,
                                   const CollectiveId& id, std::vector<uint64_t>*) override {
    check_all_reduce(output, tensor, id);
    sum_in_order(output, {tensor}, options.scale, options.summary);
    sent_.add_all_reduce(tensor.numel(), tensor.element_size());
    return make_done_work(output.device());
  }

  std::unique_ptr<Work> broadcast(at::Tensor tensor, int root, const CollectiveId& id) override {
    check_broadcast(tensor, root, size_, id);
    if (rank_ == root) sent_.add_for_each_peer(tensor.nbytes());
    return make_done_work(tensor.device());
  }

  std::unique_ptr<Work> all_to_all(at::Tensor output, at::Tensor input, const SplitCounts& counts,
                                   const CollectiveId& id) override {
    check_all_to_all(output, input, counts, size_, id);
    const auto own = static_cast<size_t>(rank_);
    check_own_part(counts, rank_, id);
    output.zero_();
    output.split_with_sizes(counts.receive)[own].copy_(input.split_with_sizes(counts.send)[own]);
    for (int peer = 0; peer < size_; ++peer) {
      sent_.add(peer, static_cast<uint64_t>(counts.send[static_cast<size_t>(peer)]) * input.element_size());
    }
    return make_done_work(output.device());
  }

  // There is no receiver, and no sender: received tensors are zeros.
  std::unique_ptr<Work> send(at::Tensor tensor, int to, const CollectiveId& id) override {
    check_message(tensor, to, rank_, size_, "send", id);
    sent_.add(to, tensor.nbytes());
    return make_done_work(tensor.device());
  }
  std::unique_ptr<Work> recv(at::Tensor output, int from, const CollectiveId& id) override {
    check_message(output, from, rank_, size_, "receive", id);
    at::AutoDispatchBelowADInplaceOrView no_autograd;
    output.zero_();
    return make_done_work(output.device());
  }

  std::vector<std::string> all_gather_bytes(const std::string& bytes, const CollectiveId&) override {
    sent_.add_for_each_peer(bytes.size());
    return std::vector<std::string>(static_cast<size_t>(size_), bytes);
  }

  std::shared_ptr<Communicator> subgroup(const std::vector<int>& members, const CollectiveId& id) override {
    const int position = check_subgroup(members, rank_, size_, id);
    std::vector<int> names;
    for (int member : members) names.push_back(world_rank(member));
    return std::make_shared<LocalCommunicator>(position, std::move(names), backend_);
  }

  std::shared_ptr<Communicator> twin() override {
    if (!twin_) twin_ = std::make_shared<LocalCommunicator>(rank_, names_, backend_);
    return twin_;
  }

  // There is no other rank to differ from.
  bool carries_identity() const override { return true; }

  std::vector<uint64_t> bytes_sent_to() const override { return with_bytes_of(twin_.get(), sent_.by_rank()); }

 private:
  int rank_;
  int size_;
  std::vector<int> names_;
  std::string backend_;
  PayloadCount sent_;
  std::shared_ptr<Communicator> twin_;
};

}  // namespace

std::unique_ptr<Work> make_done_work(c10::Device device) { return std::make_unique<EventWork>(device); }

std::shared_ptr<Communicator> make_local_communicator(int rank, int size, std::string backend, std::vector<int> names) {
  TORCH_CHECK(size >= 1 && rank >= 0 && rank < size, "rank ", rank, " is not in a group of ", size, " ranks");
  if (names.empty()) {
    names.resize(static_cast<size_t>(size));
    std::iota(names.begin(), names.end(), 0);
  }
  TORCH_INTERNAL_ASSERT(names.size() == static_cast<size_t>(size));
  return std::make_shared<LocalCommunicator>(rank, std::move(names), std::move(backend));
}

std::vector<uint64_t> with_bytes_of(const Communicator* twin, std::vector<uint64_t> own) {
  if (twin != nullptr) {
    const std::vector<uint64_t> more = twin->bytes_sent_to();
    for (size_t rank = 0; rank < own.size(); ++rank) own[rank] += more[rank];
  }
  return own;
}

}  // namespace fsdp::comm

namespace fsdp {

std::shared_ptr<Communicator> make_fake_communicator(int rank, int size) {
  return comm::make_local_communicator(rank, size, "fake");
}

}  // namespace fsdp
