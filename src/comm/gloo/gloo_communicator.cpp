#include "comm/gloo/gloo_communicator.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "comm/collective_shapes.h"
#include "comm/exchange.h"
#include "comm/failable.h"
#include "comm/failure.h"
#include "comm/fake_communicator.h"
#include "comm/gloo/gloo_collectives.h"
#include "comm/gloo/gloo_messages.h"
#include "comm/group_family.h"
#include "comm/group_partition.h"
#include "comm/meeting/meeting_point.h"
#include "comm/pending_collective.h"
#include "comm/staged/staged_communicator.h"
#include "fsdp/backends.h"
#include "fsdp/communicator.h"

namespace fsdp::comm {
namespace {

// Allocates memory for the headers of a few collectives in flight at a time, so that it is not allocated later.
void reserve_headers(ExchangeContext& context, int size) {
  std::vector<at::Tensor> headers(12);
  for (at::Tensor& header : headers) header = context.buffers.take(size * kHeaderBytes);
  for (at::Tensor& header : headers) context.buffers.release(std::move(header));
}

class GlooCommunicator final : public Communicator, public Failable {
 public:
  // `names`: see ExchangeContext.
  GlooCommunicator(std::shared_ptr<MeetingPoint> point, int rank, std::vector<int> names, const GlooOptions& options,
                   std::shared_ptr<GroupFamily> family)
      : point_(std::move(point)),
        options_(options),
        context_(std::make_shared<ExchangeContext>()),
        advancing_(std::make_shared<Advancing>()) {
    const auto size = static_cast<int>(names.size());
    context_->transport = std::make_shared<GlooTransport>(*point_, rank, size, options, family->failure());
    context_->names = std::move(names);
    context_->payload_bytes_sent.resize(static_cast<size_t>(size));
    context_->family = std::move(family);
    reserve_headers(*context_, size);
    context_->family->add(context_->transport);
    context_->family->add(advancing_);
    messages_ = std::make_unique<GlooMessages>(context_);
  }

  int rank() const override { return context_->transport->rank(); }
  int size() const override { return context_->transport->size(); }
  std::string backend() const override { return "gloo"; }

  std::unique_ptr<Work> all_gather(at::Tensor output, at::Tensor input, const CollectiveId& id) override {
    check_all_gather(output, input, size(), id);
    check_on_host(input, "all-gather", id);
    return issue<AllGather>(std::move(output), input, id);
  }

  bool gathers_ranges() const override { return true; }
  std::unique_ptr<Work> all_gather_ranges(at::Tensor tensor, const RankRanges& ranges,
                                          const CollectiveId& id) override {
    check_all_gather_ranges(tensor, ranges, size(), id);
    check_on_host(tensor, "all-gather", id);
    return issue<AllGatherRanges>(tensor, ranges, id);
  }

  std::unique_ptr<Work> reduce_scatter(at::Tensor output, at::Tensor input, const ReduceOptions& options,
                                       const CollectiveId& id, std::vector<uint64_t>* flags) override {
    check_reduce_scatter(output, input, size(), id);
    check_on_host(input, "reduce-scatter", id);
    return issue<ReduceScatter>(std::move(output), input, options, id, flags);
  }

  std::unique_ptr<Work> all_reduce(at::Tensor output, at::Tensor tensor, const ReduceOptions& options,
                                   const CollectiveId& id, std::vector<uint64_t>* flags) override {
    check_all_reduce(output, tensor, id);
    check_on_host(tensor, "all-reduce", id);
    base::MutexLock use(advancing_->in_use);
    at::AutoDispatchBelowADInplaceOrView no_autograd;
    auto collective = std::make_shared<AllReduce>(context_, std::move(output), tensor, options, id, flags);
    advancing_->add(collective);
    return make_pending_work(std::move(collective), advancing_);
  }

  std::unique_ptr<Work> broadcast(at::Tensor tensor, int root, const CollectiveId& id) override {
    check_broadcast(tensor, root, size(), id);
    check_on_host(tensor, "broadcast", id);
    return issue<Broadcast>(tensor, root, id);
  }

  std::unique_ptr<Work> all_to_all(at::Tensor output, at::Tensor input, const SplitCounts& counts,
                                   const CollectiveId& id) override {
    check_all_to_all(output, input, counts, size(), id);
    check_own_part(counts, rank(), id);
    check_on_host(input, "all-to-all", id);
    return issue<AllToAll>(output, input, counts, id);
  }

  std::unique_ptr<Work> send(at::Tensor tensor, int to, const CollectiveId& id) override {
    check_message(tensor, to, rank(), size(), "send", id);
    check_on_host(tensor, "message", id);
    base::MutexLock use(advancing_->in_use);
    check_not_failed();
    check_present(*this, to);
    at::AutoDispatchBelowADInplaceOrView no_autograd;
    return messages_->send(tensor, to, id);
  }

  std::unique_ptr<Work> recv(at::Tensor output, int from, const CollectiveId& id) override {
    check_message(output, from, rank(), size(), "receive", id);
    check_on_host(output, "message", id);
    base::MutexLock use(advancing_->in_use);
    check_not_failed();
    at::AutoDispatchBelowADInplaceOrView no_autograd;
    return messages_->recv(output, from, id);
  }

  std::vector<std::string> all_gather_bytes(const std::string& bytes, const CollectiveId& id) override {
    base::MutexLock use(advancing_->in_use);
    at::AutoDispatchBelowADInplaceOrView no_autograd;
    GatherBytes collective(context_, bytes, id);
    advancing_->finish(collective);
    return collective.take_result();
  }

  std::shared_ptr<Communicator> subgroup(const std::vector<int>& members, const CollectiveId& id) override;

  std::shared_ptr<Communicator> twin() override {
    if (!twin_) {
      std::vector<int> all(static_cast<size_t>(size()));
      std::iota(all.begin(), all.end(), 0);
      twin_ = subgroup(all, {"twin", 0, Pass::kSetup});
    }
    return twin_;
  }

  bool carries_identity() const override { return true; }
  std::shared_ptr<MeetingPoint> meeting_point() const override { return context_->transport->meeting_point(); }
  std::chrono::milliseconds timeout() const override { return context_->transport->timeout(); }
  int world_rank(int rank) const override { return context_->names.at(static_cast<size_t>(rank)); }
  void abort(const std::string& reason) override { context_->family->fail(*context_->transport, reason); }
  void trim() override {
    base::MutexLock use(advancing_->in_use);
    context_->buffers.trim();
    messages_->free_received();
  }

  std::vector<uint64_t> bytes_sent_to() const override {
    return with_bytes_of(twin_.get(), context_->payload_bytes_sent);
  }

  std::vector<Loss> losses() const override {
    std::vector<Loss> losses;
    for (int rank : context_->transport->losses()) losses.push_back({rank, context_->transport->why_lost(rank)});
    return losses;
  }
  GroupFamily* family() const override { return context_->family.get(); }
  void check_not_failed() const override { context_->transport->check_not_failed(); }
  void check_complete() const override {
    try {
      context_->transport->check_complete();
    } catch (const PeerLost& error) {
      const int rank = context_->names[static_cast<size_t>(error.peer())];
      Failure{Failure::Kind::kRankLost, c10::str("rank ", rank, " is lost: ", error.what())}.raise();
    }
  }

 private:
  std::shared_ptr<Communicator> make_subgroup(const std::shared_ptr<MeetingPoint>& point,
                                              const std::vector<int>& members, const CollectiveId& id);

  static void check_on_host(const at::Tensor& tensor, const char* kind, const CollectiveId& id) {
    TORCH_CHECK(tensor.is_cpu(), describe(kind, id), ": Gloo exchanges tensors in host memory; this one is on ",
                tensor.device());
  }

  template <typename C, typename... Arguments>
  std::unique_ptr<Work> issue(Arguments&&... arguments) {
    base::MutexLock use(advancing_->in_use);
    at::AutoDispatchBelowADInplaceOrView no_autograd;
    return make_pending_work(std::make_shared<C>(context_, std::forward<Arguments>(arguments)...), advancing_);
  }

  std::shared_ptr<MeetingPoint> point_;  // for subgroups
  GlooOptions options_;
  std::shared_ptr<ExchangeContext> context_;
  std::shared_ptr<Advancing> advancing_;
  std::unique_ptr<GlooMessages> messages_;
  std::shared_ptr<Communicator> twin_;
};

std::shared_ptr<Communicator> GlooCommunicator::subgroup(const std::vector<int>& members, const CollectiveId& id) {
  const std::string partition = agree_on_partition(*this, members, id);
  const auto point = inner_meeting_point(*point_, c10::str("subgroup/", partition, "/", members.front()));
  auto group = make_subgroup(point, members, id);
  barrier(id);  // so that a rank that drops its group at once does not disturb ranks that still connect
  return group;
}

std::shared_ptr<Communicator> GlooCommunicator::make_subgroup(const std::shared_ptr<MeetingPoint>& point,
                                                              const std::vector<int>& members, const CollectiveId& id) {
  const int position = check_subgroup(members, rank(), size(), id);
  std::vector<int> names;
  for (int member : members) names.push_back(context_->names[static_cast<size_t>(member)]);
  if (names.size() == 1) return make_local_communicator(0, 1, "gloo", std::move(names));
  return std::make_shared<GlooCommunicator>(point, position, std::move(names), options_, context_->family);
}

}  // namespace

std::shared_ptr<Communicator> make_host_communicator(const std::shared_ptr<MeetingPoint>& point, int rank, int size,
                                                     const GlooOptions& options) {
  TORCH_CHECK(size >= 1 && rank >= 0 && rank < size, "rank ", rank, " is not in a group of ", size, " ranks");
  if (size == 1) return make_local_communicator(0, 1, "gloo");
  std::vector<int> names(static_cast<size_t>(size));
  std::iota(names.begin(), names.end(), 0);
  auto group =
      std::make_shared<GlooCommunicator>(point, rank, std::move(names), options, std::make_shared<GroupFamily>());
  group->barrier({"group", 0, Pass::kSetup});  // as in subgroup()
  return group;
}

std::shared_ptr<Communicator> make_gloo_communicator(const std::shared_ptr<MeetingPoint>& point, int rank, int size,
                                                     const GlooOptions& options) {
  return make_staged_communicator(make_host_communicator(point, rank, size, options));
}

}  // namespace fsdp::comm

namespace fsdp {

std::shared_ptr<Communicator> make_gloo_communicator(const RankEnvironment& environment, const GlooOptions& options) {
  if (environment.world_size == 1) return comm::make_gloo_communicator(nullptr, environment.rank, 1, options);
  const auto point = comm::make_tcp_meeting_point(environment, options.timeout);
  return comm::make_gloo_communicator(point, environment.rank, environment.world_size, options);
}

}  // namespace fsdp
