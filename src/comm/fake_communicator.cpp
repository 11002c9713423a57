#include "comm/fake_communicator.h"

#include <c10/util/Exception.h>

#include <cstring>
#include <utility>
#include <vector>

#include "comm/collective_shapes.h"
#include "comm/reduce_kernels.h"

namespace fsdp {
namespace {

class DoneWork final : public Work {
 public:
  void wait() override {}
};

class LocalCommunicator final : public Communicator {
 public:
  LocalCommunicator(int rank, int size, std::string backend)
      : rank_(rank), size_(size), backend_(std::move(backend)), bytes_sent_(static_cast<size_t>(size)) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string backend() const override { return backend_; }

  std::unique_ptr<Work> all_gather(at::Tensor output, at::Tensor input, const CollectiveId& id) override {
    check_all_gather(output, input, size_, id);
    for (int rank = 0; rank < size_; ++rank) copy_into_slice(output, rank, input);
    count_for_each_peer(input.nbytes());
    return make_done_work();
  }

  std::unique_ptr<Work> reduce_scatter(at::Tensor output, at::Tensor input, const ReduceOptions& options,
                                       const CollectiveId& id, std::vector<uint64_t>*) override {
    check_reduce_scatter(output, input, size_, id);
    const auto numel = output.numel();
    sum_in_order(output, {input.narrow(0, rank_ * numel, numel)}, options.scale);
    count_for_each_peer(numel * input.element_size());
    return make_done_work();
  }

  std::unique_ptr<Work> all_reduce(at::Tensor output, at::Tensor tensor, const ReduceOptions& options,
                                   const CollectiveId& id, std::vector<uint64_t>*) override {
    check_all_reduce(output, tensor, id);
    sum_in_order(output, {tensor}, options.scale);
    for (int peer = 0; peer < size_; ++peer) {
      const int64_t elements = part_of(tensor.numel(), peer, size_).numel + part_of(tensor.numel(), rank_, size_).numel;
      count(peer, elements * tensor.element_size());
    }
    return make_done_work();
  }

  std::unique_ptr<Work> broadcast(at::Tensor tensor, int root, const CollectiveId& id) override {
    check_broadcast(tensor, root, size_, id);
    if (rank_ == root) count_for_each_peer(tensor.nbytes());
    return make_done_work();
  }

  std::vector<std::string> all_gather_bytes(const std::string& bytes, const CollectiveId&) override {
    count_for_each_peer(bytes.size());
    return std::vector<std::string>(static_cast<size_t>(size_), bytes);
  }

  std::shared_ptr<Communicator> subgroup(const std::vector<int>& members, const CollectiveId& id) override {
    return make_local_communicator(check_subgroup(members, rank_, size_, id), static_cast<int>(members.size()),
                                   backend_);
  }

  std::shared_ptr<Communicator> twin() override {
    if (!twin_) twin_ = make_local_communicator(rank_, size_, backend_);
    return twin_;
  }

  // There is no other rank to differ from.
  bool carries_identity() const override { return true; }

  std::vector<uint64_t> bytes_sent_to() const override { return with_bytes_of(twin_.get(), bytes_sent_); }

 private:
  void count(int peer, uint64_t bytes) { bytes_sent_[static_cast<size_t>(peer)] += peer == rank_ ? 0 : bytes; }
  void count_for_each_peer(uint64_t bytes) {
    for (int peer = 0; peer < size_; ++peer) count(peer, bytes);
  }

  int rank_;
  int size_;
  std::string backend_;
  std::vector<uint64_t> bytes_sent_;
  std::shared_ptr<Communicator> twin_;
};

}  // namespace

std::unique_ptr<Work> make_done_work() { return std::make_unique<DoneWork>(); }

std::shared_ptr<Communicator> make_local_communicator(int rank, int size, std::string backend) {
  TORCH_CHECK(size >= 1 && rank >= 0 && rank < size, "rank ", rank, " is not in a group of ", size, " ranks");
  return std::make_shared<LocalCommunicator>(rank, size, std::move(backend));
}

std::shared_ptr<Communicator> make_fake_communicator(int rank, int size) {
  return make_local_communicator(rank, size, "fake");
}

std::vector<uint64_t> with_bytes_of(const Communicator* twin, std::vector<uint64_t> own) {
  if (twin != nullptr) {
    const std::vector<uint64_t> more = twin->bytes_sent_to();
    for (size_t rank = 0; rank < own.size(); ++rank) own[rank] += more[rank];
  }
  return own;
}

}  // namespace fsdp
