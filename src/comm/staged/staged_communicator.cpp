#include "comm/staged/staged_communicator.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>

#include <utility>

#include "comm/collective_shapes.h"
#include "comm/failable.h"
#include "fsdp/memory_sharing.h"

namespace fsdp::comm {
namespace {

at::Tensor host_memory_for(const at::Tensor& tensor) {
  // The allocator of pinned memory does not reuse a freed block until the copies enqueued on it are done.
  return at::empty(tensor.sizes(), at::TensorOptions(tensor.scalar_type()).pinned_memory(tensor.is_cuda()));
}

// Blocks until the copy is complete.
at::Tensor copy_to_host(const at::Tensor& tensor) {
  at::Tensor copy = host_memory_for(tensor);
  copy.copy_(tensor);
  return copy;
}

class StagedWork final : public Work {
 public:
  StagedWork(std::unique_ptr<Work> inner, at::Tensor output, at::Tensor result)
      : inner_(std::move(inner)), output_(std::move(output)), result_(std::move(result)) {}

  void wait() override {
    inner_->wait();
    at::AutoDispatchBelowADInplaceOrView no_autograd;
    // Safe on any current stream: the copy to the host has waited for all earlier uses of the output.
    output_.copy_(result_, /*non_blocking=*/result_.is_pinned());
  }
  void advance() override { inner_->advance(); }

 private:
  std::unique_ptr<Work> inner_;
  at::Tensor output_;
  at::Tensor result_;  // on the host
};

class StagedCommunicator final : public Communicator, public Failable {
 public:
  explicit StagedCommunicator(std::shared_ptr<Communicator> host) : host_(std::move(host)) {}

  int rank() const override { return host_->rank(); }
  int size() const override { return host_->size(); }
  std::string backend() const override { return host_->backend(); }

  std::unique_ptr<Work> all_gather(at::Tensor output, at::Tensor input, const CollectiveId& id) override {
    if (output.defined() && output.is_cpu()) return host_->all_gather(std::move(output), std::move(input), id);
    check_all_gather(output, input, size(), id);
    at::AutoDispatchBelowADInplaceOrView no_autograd;
    at::Tensor gathered = host_memory_for(output);
    at::Tensor own = gathered.narrow(0, rank() * input.numel(), input.numel());
    own.copy_(input);
    auto work = host_->all_gather(gathered, own, id);
    return std::make_unique<StagedWork>(std::move(work), std::move(output), std::move(gathered));
  }

  bool gathers_ranges() const override { return host_->gathers_ranges(); }
  std::unique_ptr<Work> all_gather_ranges(at::Tensor tensor, const RankRanges& ranges,
                                          const CollectiveId& id) override {
    return host_->all_gather_ranges(std::move(tensor), ranges, id);
  }

  std::unique_ptr<Work> reduce_scatter(at::Tensor output, at::Tensor input, const ReduceOptions& options,
                                       const CollectiveId& id, std::vector<uint64_t>* flags) override {
    if (output.defined() && output.is_cpu()) {
      return host_->reduce_scatter(std::move(output), std::move(input), options, id, flags);
    }
    check_reduce_scatter(output, input, size(), id);
    at::AutoDispatchBelowADInplaceOrView no_autograd;
    at::Tensor part = host_memory_for(output);
    auto work = host_->reduce_scatter(part, copy_to_host(input), options, id, flags);
    return std::make_unique<StagedWork>(std::move(work), std::move(output), std::move(part));
  }

  std::unique_ptr<Work> all_reduce(at::Tensor output, at::Tensor tensor, const ReduceOptions& options,
                                   const CollectiveId& id, std::vector<uint64_t>* flags) override {
    if (output.defined() && output.is_cpu()) {
      return host_->all_reduce(std::move(output), std::move(tensor), options, id, flags);
    }
    check_all_reduce(output, tensor, id);
    at::AutoDispatchBelowADInplaceOrView no_autograd;
    at::Tensor contribution = copy_to_host(tensor);
    at::Tensor sum = output.scalar_type() == tensor.scalar_type() ? contribution : host_memory_for(output);
    auto work = host_->all_reduce(sum, contribution, options, id, flags);
    return std::make_unique<StagedWork>(std::move(work), std::move(output), std::move(sum));
  }

  std::unique_ptr<Work> broadcast(at::Tensor tensor, int root, const CollectiveId& id) override {
    if (tensor.defined() && tensor.is_cpu()) return host_->broadcast(std::move(tensor), root, id);
    check_broadcast(tensor, root, size(), id);
    at::AutoDispatchBelowADInplaceOrView no_autograd;
    at::Tensor copy = rank() == root ? copy_to_host(tensor) : host_memory_for(tensor);
    auto work = host_->broadcast(copy, root, id);
    return std::make_unique<StagedWork>(std::move(work), std::move(tensor), std::move(copy));
  }

  std::unique_ptr<Work> all_to_all(at::Tensor output, at::Tensor input, const SplitCounts& counts,
                                   const CollectiveId& id) override {
    if (output.defined() && output.is_cpu()) return host_->all_to_all(std::move(output), std::move(input), counts, id);
    check_all_to_all(output, input, counts, size(), id);
    at::AutoDispatchBelowADInplaceOrView no_autograd;
    at::Tensor received = host_memory_for(output);
    auto work = host_->all_to_all(received, copy_to_host(input), counts, id);
    return std::make_unique<StagedWork>(std::move(work), std::move(output), std::move(received));
  }

  std::unique_ptr<Work> send(at::Tensor tensor, int to, const CollectiveId& id) override {
    if (tensor.defined() && tensor.is_cpu()) return host_->send(std::move(tensor), to, id);
    check_message(tensor, to, rank(), size(), "send", id);
    at::AutoDispatchBelowADInplaceOrView no_autograd;
    return host_->send(copy_to_host(tensor), to, id);
  }

  std::unique_ptr<Work> recv(at::Tensor output, int from, const CollectiveId& id) override {
    if (output.defined() && output.is_cpu()) return host_->recv(std::move(output), from, id);
    check_message(output, from, rank(), size(), "receive", id);
    at::AutoDispatchBelowADInplaceOrView no_autograd;
    at::Tensor received = host_memory_for(output);
    auto work = host_->recv(received, from, id);
    return std::make_unique<StagedWork>(std::move(work), std::move(output), std::move(received));
  }

  std::vector<std::string> all_gather_bytes(const std::string& bytes, const CollectiveId& id) override {
    return host_->all_gather_bytes(bytes, id);
  }

  std::shared_ptr<Communicator> subgroup(const std::vector<int>& members, const CollectiveId& id) override {
    return make_staged_communicator(host_->subgroup(members, id));
  }

  std::shared_ptr<Communicator> twin() override {
    if (!twin_) twin_ = make_staged_communicator(host_->twin());
    return twin_;
  }

  std::vector<uint64_t> bytes_sent_to() const override { return host_->bytes_sent_to(); }
  bool carries_identity() const override { return host_->carries_identity(); }
  std::shared_ptr<MeetingPoint> meeting_point() const override { return host_->meeting_point(); }
  std::chrono::milliseconds timeout() const override { return host_->timeout(); }
  int world_rank(int rank) const override { return host_->world_rank(rank); }
  void abort(const std::string& reason) override { host_->abort(reason); }
  void trim() override { host_->trim(); }
  MemorySharing& memory_sharing() override { return host_->memory_sharing(); }

  GroupFamily* family() const override { return family_of(*host_); }
  void check_not_failed() const override { check_group_not_failed(*host_); }
  void check_complete() const override { check_group_complete(*host_); }
  std::vector<Loss> losses() const override { return losses_of(*host_); }

 private:
  std::shared_ptr<Communicator> host_;
  std::shared_ptr<Communicator> twin_;
};

}  // namespace

std::shared_ptr<Communicator> make_staged_communicator(std::shared_ptr<Communicator> host) {
  return std::make_shared<StagedCommunicator>(std::move(host));
}

}  // namespace fsdp::comm
