#include "comm/nccl/nccl_communicator.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <numeric>
#include <utility>
#include <vector>

#include "base/device_stream.h"
#include "comm/collective_shapes.h"
#include "comm/failure.h"
#include "comm/fake_communicator.h"
#include "comm/gloo/gloo_communicator.h"
#include "comm/nccl/nccl_group.h"
#include "comm/nccl/nccl_parcels.h"
#include "comm/nccl/nccl_reduction.h"
#include "comm/nccl/nccl_work.h"
#include "comm/payload_count.h"
#include "comm/tensor_for_sum.h"
#include "fsdp/backends.h"

namespace fsdp::comm {
namespace {

class NcclCommunicator final : public Communicator {
 public:
  // Collective over the ranks of `host`.
  NcclCommunicator(NcclSetup setup, const std::shared_ptr<Communicator>& host)
      : context_(std::make_shared<NcclContext>()), sent_(host->rank(), host->size()) {
    const CollectiveId id{"id of an NCCL group", 0, Pass::kSetup};
    const std::string own_id = host->rank() == 0 ? make_nccl_unique_id(*setup.library) : std::string();
    const std::string unique_id = host->all_gather_bytes(own_id, id).front();
    context_->host = host;
    context_->agreement = std::make_unique<HostAgreement>(host, setup.options.compare_every_collective);
    context_->group = std::make_unique<NcclGroup>(std::move(setup), host, unique_id);
    host->barrier(id);  // a rank that ends its group at once must not disturb those that still connect
  }

  int rank() const override { return context_->host->rank(); }
  int size() const override { return context_->host->size(); }
  std::string backend() const override { return "nccl"; }

  std::unique_ptr<Work> all_gather(at::Tensor output, at::Tensor input, const CollectiveId& id) override;
  std::unique_ptr<Work> reduce_scatter(at::Tensor output, at::Tensor input, const ReduceOptions& options,
                                       const CollectiveId& id, std::vector<uint64_t>* flags) override;
  std::unique_ptr<Work> all_reduce(at::Tensor output, at::Tensor tensor, const ReduceOptions& options,
                                   const CollectiveId& id, std::vector<uint64_t>* flags) override;

  std::unique_ptr<Work> broadcast(at::Tensor tensor, int root, const CollectiveId& id) override;

  std::unique_ptr<Work> all_to_all(at::Tensor output, at::Tensor input, const SplitCounts& counts,
                                   const CollectiveId& id) override;

  std::unique_ptr<Work> send(at::Tensor tensor, int to, const CollectiveId& id) override;
  std::unique_ptr<Work> recv(at::Tensor output, int from, const CollectiveId& id) override;

  std::vector<std::string> all_gather_bytes(const std::string& bytes, const CollectiveId& id) override {
    group().check({"all-gather of bytes", id});
    auto all = context_->host->all_gather_bytes(bytes, context_->agreement->with_history(id));
    sent_.add_for_each_peer(bytes.size());
    return all;
  }

  std::shared_ptr<Communicator> subgroup(const std::vector<int>& members, const CollectiveId& id) override {
    group().check({"subgroup", id});
    return std::make_shared<NcclCommunicator>(group().setup(), context_->host->subgroup(members, id));
  }

  std::shared_ptr<Communicator> twin() override {
    if (!twin_) {
      std::vector<int> all(static_cast<size_t>(size()));
      std::iota(all.begin(), all.end(), 0);
      twin_ = subgroup(all, {"twin", 0, Pass::kSetup});
    }
    return twin_;
  }

  std::vector<uint64_t> bytes_sent_to() const override { return with_bytes_of(twin_.get(), sent_.by_rank()); }
  std::shared_ptr<MeetingPoint> meeting_point() const override { return context_->host->meeting_point(); }
  std::chrono::milliseconds timeout() const override { return group().setup().options.timeout; }
  int world_rank(int rank) const override { return context_->host->world_rank(rank); }
  void abort(const std::string& reason) override { group().fail({.reason = reason}); }

 private:
  NcclGroup& group() const { return *context_->group; }

  // Returns the stream on which a collective on `tensor` enqueues its kernels.
  cudaStream_t stream_of(const at::Tensor& tensor) const {
    return static_cast<cudaStream_t>(base::native_stream(base::current_stream(tensor.device())));
  }

  void check_place(const at::Tensor& tensor, const NcclSubject& subject) const {
    TORCH_CHECK(tensor.device() == group().setup().device, describe(subject.kind, subject.id),
                ": this NCCL group exchanges tensors on ", group().setup().device, "; this one is on ",
                tensor.device());
  }

  // `enqueue` enqueues the collective on the current stream.
  template <typename Enqueue>
  std::unique_ptr<Work> issue(const CollectiveIdentity& identity, std::vector<uint64_t>* flags, Enqueue enqueue) {
    at::AutoDispatchBelowADInplaceOrView no_autograd;
    group().check({to_string(identity.kind), identity.id});
    group().check_complete({to_string(identity.kind), identity.id});
    auto exchange = context_->agreement->begin(identity, flags);
    if (identity.numel > 0 || !has_equal_sizes(identity.kind)) enqueue();
    return make_nccl_work(context_, identity, std::move(exchange), flags);
  }

  // `comparison`: this rank's side of the comparison of a message by the hosts, or null. `enqueue`: see issue().
  template <typename Enqueue>
  std::unique_ptr<Work> issue_message(const CollectiveId& id, int peer, std::unique_ptr<Work> comparison,
                                      Enqueue enqueue);
  // Whether a message of this tensor does not concern the device.
  bool is_between_hosts(const at::Tensor& tensor) const { return tensor.is_cpu() && !group().setup().device.is_cpu(); }
  bool compares() const { return group().setup().options.compare_every_collective; }

  std::shared_ptr<NcclContext> context_;
  PayloadCount sent_;
  std::shared_ptr<Communicator> twin_;
};

CollectiveIdentity identity_of(CollectiveKind kind, const CollectiveId& id, const at::Tensor& larger,
                               const at::Tensor& output, double scale, const std::vector<uint64_t>* flags) {
  CollectiveIdentity identity;
  identity.kind = kind;
  identity.id = id;
  identity.numel = larger.numel();
  identity.dtype = larger.scalar_type();
  identity.output_dtype = output.scalar_type();
  identity.scale = scale;
  identity.flag_words = flags != nullptr ? static_cast<uint32_t>(flags->size()) : 0;
  return identity;
}

// Converts the sum into the result, on the current stream.
void finish_sum(at::Tensor& output, const at::Tensor& sum, double factor) {
  if (!output.is_same(sum)) output.copy_(sum, /*non_blocking=*/true);
  if (factor != 1.0) output.mul_(factor);
}

std::unique_ptr<Work> NcclCommunicator::all_gather(at::Tensor output, at::Tensor input, const CollectiveId& id) {
  const NcclSubject subject{"all-gather", id};
  check_all_gather(output, input, size(), id);
  check_place(input, subject);
  sent_.add_for_each_peer(input.nbytes());
  return issue(identity_of(CollectiveKind::kAllGather, id, output, output, 1.0, nullptr), nullptr, [&] {
    group().call(subject, [&](const NcclLibrary& nccl, ncclComm_t comm) {
      return nccl.all_gather(input.const_data_ptr(), output.mutable_data_ptr(), input.nbytes(), ncclUint8, comm,
                             stream_of(input));
    });
  });
}

std::unique_ptr<Work> NcclCommunicator::reduce_scatter(at::Tensor output, at::Tensor input,
                                                       const ReduceOptions& options, const CollectiveId& id,
                                                       std::vector<uint64_t>* flags) {
  const NcclSubject subject{"reduce-scatter", id};
  check_reduce_scatter(output, input, size(), id);
  check_place(input, subject);
  const auto dtype = input.scalar_type();
  const ncclDataType_t wire_dtype = nccl_dtype(dtype, subject);
  const SplitScale scale = split_scale(options.scale, dtype, subject);
  sent_.add_for_each_peer(output.numel() * input.element_size());
  const auto identity = identity_of(CollectiveKind::kReduceScatter, id, input, output, options.scale, flags);
  return issue(identity, flags, [&] {
    // Freed in the order of this stream, the only one that uses it.
    const at::Tensor sum = tensor_for_sum(output, input);
    const ScaledSum reduction(group(), subject, dtype, scale.before);
    group().call(subject, [&](const NcclLibrary& nccl, ncclComm_t comm) {
      return nccl.reduce_scatter(input.const_data_ptr(), sum.mutable_data_ptr(), static_cast<size_t>(sum.numel()),
                                 wire_dtype, reduction.op(), comm, stream_of(input));
    });
    finish_sum(output, sum, scale.after);
  });
}

std::unique_ptr<Work> NcclCommunicator::all_reduce(at::Tensor output, at::Tensor tensor, const ReduceOptions& options,
                                                   const CollectiveId& id, std::vector<uint64_t>* flags) {
  const NcclSubject subject{"all-reduce", id};
  check_all_reduce(output, tensor, id);
  check_place(tensor, subject);
  const auto dtype = tensor.scalar_type();
  const ncclDataType_t wire_dtype = nccl_dtype(dtype, subject);
  const SplitScale scale = split_scale(options.scale, dtype, subject);
  sent_.add_all_reduce(tensor.numel(), tensor.element_size());
  const auto identity = identity_of(CollectiveKind::kAllReduce, id, tensor, output, options.scale, flags);
  return issue(identity, flags, [&] {
    at::Tensor sum = output.scalar_type() == dtype ? output : tensor;
    const ScaledSum reduction(group(), subject, dtype, scale.before);
    group().call(subject, [&](const NcclLibrary& nccl, ncclComm_t comm) {
      return nccl.all_reduce(tensor.const_data_ptr(), sum.mutable_data_ptr(), static_cast<size_t>(sum.numel()),
                             wire_dtype, reduction.op(), comm, stream_of(tensor));
    });
    finish_sum(output, sum, scale.after);
  });
}

std::unique_ptr<Work> NcclCommunicator::broadcast(at::Tensor tensor, int root, const CollectiveId& id) {
  const NcclSubject subject{"broadcast", id};
  check_broadcast(tensor, root, size(), id);
  check_place(tensor, subject);
  if (rank() == root) sent_.add_for_each_peer(tensor.nbytes());
  auto identity = identity_of(CollectiveKind::kBroadcast, id, tensor, tensor, 1.0, nullptr);
  identity.root = root;
  return issue(identity, nullptr, [&] {
    group().call(subject, [&](const NcclLibrary& nccl, ncclComm_t comm) {
      return nccl.broadcast(tensor.const_data_ptr(), tensor.mutable_data_ptr(), tensor.nbytes(), ncclUint8, root, comm,
                            stream_of(tensor));
    });
  });
}

std::unique_ptr<Work> NcclCommunicator::all_to_all(at::Tensor output, at::Tensor input, const SplitCounts& counts,
                                                   const CollectiveId& id) {
  const NcclSubject subject{"all-to-all", id};
  check_all_to_all(output, input, counts, size(), id);
  check_own_part(counts, rank(), id);
  check_place(input, subject);
  for (int peer = 0; peer < size(); ++peer) {
    sent_.add(peer, static_cast<uint64_t>(counts.send[static_cast<size_t>(peer)]) * input.element_size());
  }
  return issue(identity_of(CollectiveKind::kAllToAll, id, input, output, 1.0, nullptr), nullptr, [&] {
    const Parcels parcels{input.split_with_sizes(counts.send), output.split_with_sizes(counts.receive)};
    const auto own = static_cast<size_t>(rank());
    parcels.outputs[own].copy_(parcels.inputs[own], /*non_blocking=*/true);
    group().call(subject, [&](const NcclLibrary& nccl, ncclComm_t comm) {
      return exchange_parcels(nccl, comm, rank(), parcels, stream_of(input));
    });
  });
}

// A message of which the hosts compare sizes and dtype as their own.
CollectiveId with_shape(const CollectiveId& id, const at::Tensor& tensor) {
  return {c10::str(id.name, ": ", tensor.scalar_type(), " of sizes ", tensor.sizes()), id.generation, id.pass};
}

template <typename Enqueue>
std::unique_ptr<Work> NcclCommunicator::issue_message(const CollectiveId& id, int peer,
                                                      std::unique_ptr<Work> comparison, Enqueue enqueue) {
  at::AutoDispatchBelowADInplaceOrView no_autograd;
  const NcclSubject subject{to_string(CollectiveKind::kMessage), id};
  group().check_present(subject, peer);
  group().call(subject, enqueue);
  return make_nccl_message_work(context_, id, std::move(comparison));
}

std::unique_ptr<Work> NcclCommunicator::send(at::Tensor tensor, int to, const CollectiveId& id) {
  check_message(tensor, to, rank(), size(), "send", id);
  if (is_between_hosts(tensor)) {
    group().check({"message", id});
    sent_.add(to, tensor.nbytes());
    return context_->host->send(std::move(tensor), to, id);
  }
  check_place(tensor, {"message", id});
  group().check({"message", id});
  sent_.add(to, tensor.nbytes());
  // The receiver compares, so this rank has nothing to wait for.
  if (compares()) context_->host->send(at::empty({0}, at::kByte), to, with_shape(id, tensor));
  return issue_message(id, to, nullptr, [&](const NcclLibrary& nccl, ncclComm_t comm) {
    Parcels parcels{std::vector<at::Tensor>(static_cast<size_t>(size()), tensor.new_empty({0})), {}};
    parcels.outputs = parcels.inputs;
    parcels.inputs[static_cast<size_t>(to)] = tensor;
    return exchange_parcels(nccl, comm, rank(), parcels, stream_of(tensor));
  });
}

std::unique_ptr<Work> NcclCommunicator::recv(at::Tensor output, int from, const CollectiveId& id) {
  check_message(output, from, rank(), size(), "receive", id);
  if (is_between_hosts(output)) {
    group().check({"message", id});
    return context_->host->recv(std::move(output), from, id);
  }
  check_place(output, {"message", id});
  group().check({"message", id});
  auto comparison =
      compares() ? context_->host->recv(at::empty({0}, at::kByte), from, with_shape(id, output)) : nullptr;
  return issue_message(id, from, std::move(comparison), [&](const NcclLibrary& nccl, ncclComm_t comm) {
    Parcels parcels{std::vector<at::Tensor>(static_cast<size_t>(size()), output.new_empty({0})), {}};
    parcels.outputs = parcels.inputs;
    parcels.outputs[static_cast<size_t>(from)] = output;
    return exchange_parcels(nccl, comm, rank(), parcels, stream_of(output));
  });
}

c10::Device cuda_device_of(const RankEnvironment& environment, const NcclOptions& options) {
  const int count = base::device_count(c10::kCUDA);
  TORCH_CHECK(count > 0,
              "NCCL exchanges tensors on NVIDIA GPUs, but there is no CUDA device: either LibTorch is built "
              "for the CPU only, or no GPU or driver is found (nvidia-smi shows them; CUDA_VISIBLE_DEVICES may hide "
              "them). make_gloo_communicator works without a GPU");
  const int index = options.device.value_or(environment.local_rank);
  TORCH_CHECK(index >= 0 && index < count, "rank ", environment.rank, " (local rank ", environment.local_rank,
              ") cannot use CUDA device ", index, ": this process sees ", count,
              ". Each rank needs a GPU of its own; choose it with NcclOptions::device");
  return {c10::kCUDA, static_cast<c10::DeviceIndex>(index)};
}

GlooOptions host_options(const NcclOptions& options) { return {options.timeout, options.host}; }

}  // namespace

bool nccl_is_built_in() { return true; }

std::shared_ptr<Communicator> make_nccl_communicator(const std::shared_ptr<MeetingPoint>& point, int rank, int size,
                                                     const NcclOptions& options, const NcclPlace& place) {
  NcclSetup setup{load_nccl_library(place.library), place.device, options};
  const auto host = make_host_communicator(point, rank, size, host_options(options));
  return std::make_shared<NcclCommunicator>(std::move(setup), host);
}

}  // namespace fsdp::comm

namespace fsdp {

std::shared_ptr<Communicator> make_nccl_communicator(const RankEnvironment& environment, const NcclOptions& options) {
  const comm::NcclPlace place{comm::cuda_device_of(environment, options), {}};
  comm::load_nccl_library();  // a rank without a library reports it before the others wait for it
  const auto point = environment.world_size == 1 ? nullptr : comm::make_tcp_meeting_point(environment, options.timeout);
  return comm::make_nccl_communicator(point, environment.rank, environment.world_size, options, place);
}

}  // namespace fsdp
