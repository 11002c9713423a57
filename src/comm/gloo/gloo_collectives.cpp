#include "comm/gloo/gloo_collectives.h"

#include <cstring>
#include <utility>

#include "comm/collective_identities.h"
#include "comm/collective_shapes.h"
#include "comm/reduce_kernels.h"

namespace fsdp::comm {
namespace {

constexpr int kReduceStep = 0;
constexpr int kGatherStep = 1;

// Returns staging memory for each other rank's contribution to `own`, and `own` itself, in rank order.
std::vector<at::Tensor> make_parts(Exchange& exchange, const at::Tensor& own) {
  const auto bytes = static_cast<int64_t>(own.nbytes());
  const at::Tensor staging = exchange.staging(bytes * (exchange.size() - 1));
  std::vector<at::Tensor> parts;
  int64_t begin = 0;
  for (int rank = 0; rank < exchange.size(); ++rank) {
    if (rank == exchange.rank()) {
      parts.push_back(own);
      continue;
    }
    parts.push_back(staging.narrow(0, begin, bytes).view(own.scalar_type()));
    begin += bytes;
  }
  return parts;
}

}  // namespace

void Collective::finish() {
  exchange_.agree();
  exchange_.wait_received();
  exchange_.finish();
}

AllGather::AllGather(std::shared_ptr<ExchangeContext> context, at::Tensor output, const at::Tensor& input,
                     const CollectiveId& id)
    : Collective(std::move(context),
                 identify(CollectiveKind::kAllGather, id, output, output.scalar_type(), 1.0, nullptr), nullptr) {
  const auto n = input.numel();
  for_each_peer([&](int peer) { exchange_.receive(peer, output.narrow(0, peer * n, n)); });
  for_each_peer([&](int peer) { exchange_.send(peer, input); });
  copy_into_slice(output, exchange_.rank(), input);
}

AllGatherRanges::AllGatherRanges(std::shared_ptr<ExchangeContext> context, const at::Tensor& tensor,
                                 const RankRanges& ranges, const CollectiveId& id)
    : Collective(std::move(context),
                 identify(CollectiveKind::kAllGather, id, tensor, tensor.scalar_type(), 1.0, nullptr), nullptr) {
  const auto for_each_range_of = [&](int rank, auto action) {
    for (const ElementRange& range : ranges[static_cast<size_t>(rank)]) {
      action(tensor.narrow(0, range.begin, range.numel));
    }
  };
  for_each_peer(
      [&](int peer) { for_each_range_of(peer, [&](const at::Tensor& range) { exchange_.receive(peer, range); }); });
  for_each_peer([&](int peer) {
    for_each_range_of(exchange_.rank(), [&](const at::Tensor& range) { exchange_.send(peer, range); });
  });
}

ReduceScatter::ReduceScatter(std::shared_ptr<ExchangeContext> context, at::Tensor output, const at::Tensor& input,
                             const ReduceOptions& options, const CollectiveId& id, std::vector<uint64_t>* flags)
    : Collective(std::move(context),
                 identify(CollectiveKind::kReduceScatter, id, input, output.scalar_type(), options.scale, flags),
                 flags),
      output_(std::move(output)),
      options_(options) {
  const auto n = output_.numel();
  parts_ = make_parts(exchange_, input.narrow(0, exchange_.rank() * n, n));
  for_each_peer([&](int peer) { exchange_.receive(peer, parts_[static_cast<size_t>(peer)]); });
  for_each_peer([&](int peer) { exchange_.send(peer, input.narrow(0, peer * n, n)); });
}

void ReduceScatter::finish() {
  exchange_.agree();
  exchange_.wait_received();
  sum_in_order(output_, parts_, options_.scale, options_.summary);
  exchange_.finish();
}

// Results travel in the dtype of `tensor`: directly into `output` if it has the same dtype, else back into `tensor` and
// from there into `output` in one cast. Either may be overwritten early, because the sum of a part comes back only
// after this rank's contribution to it was sent.
AllReduce::AllReduce(std::shared_ptr<ExchangeContext> context, at::Tensor output, const at::Tensor& tensor,
                     const ReduceOptions& options, const CollectiveId& id, std::vector<uint64_t>* flags)
    : Collective(std::move(context),
                 identify(CollectiveKind::kAllReduce, id, tensor, output.scalar_type(), options.scale, flags), flags),
      output_(std::move(output)),
      sums_(output_.scalar_type() == tensor.scalar_type() ? output_ : tensor),
      options_(options) {
  parts_ = make_parts(exchange_, own_slice(tensor, exchange_.rank()));
  for_each_peer([&](int peer) { exchange_.receive(peer, parts_[static_cast<size_t>(peer)], kReduceStep); });
  for_each_peer([&](int peer) { exchange_.receive(peer, own_slice(sums_, peer), kGatherStep); });
  for_each_peer([&](int peer) { exchange_.send(peer, own_slice(tensor, peer), kReduceStep); });
}

at::Tensor AllReduce::own_slice(const at::Tensor& tensor, int rank) const {
  const auto part = part_of(tensor.numel(), rank, exchange_.size());
  return tensor.narrow(0, part.begin, part.numel);
}

void AllReduce::advance() {
  if (std::exchange(reduced_, true)) return;
  exchange_.agree();
  exchange_.wait_received(kReduceStep);
  const at::Tensor sum = own_slice(sums_, exchange_.rank());
  sum_in_order(sum, parts_, options_.scale);
  for_each_peer([&](int peer) { exchange_.send(peer, sum, kGatherStep); });
}

void AllReduce::finish() {
  advance();
  exchange_.wait_received(kGatherStep);
  if (!sums_.is_same(output_)) output_.copy_(sums_);
  if (options_.summary != nullptr) *options_.summary = summary_in_parts(output_, exchange_.size());
  exchange_.finish();
}

Broadcast::Broadcast(std::shared_ptr<ExchangeContext> context, const at::Tensor& tensor, int root,
                     const CollectiveId& id)
    : Collective(std::move(context), identify_broadcast(tensor, root, id), nullptr) {
  if (exchange_.rank() == root) {
    for_each_peer([&](int peer) { exchange_.send(peer, tensor); });
  } else {
    exchange_.receive(root, tensor);
  }
}

AllToAll::AllToAll(std::shared_ptr<ExchangeContext> context, const at::Tensor& output, const at::Tensor& input,
                   const SplitCounts& counts, const CollectiveId& id)
    : AllToAll(std::move(context), output, input, counts, id,
               std::make_unique<std::vector<uint64_t>>(counts.send.begin(), counts.send.end())) {}

AllToAll::AllToAll(std::shared_ptr<ExchangeContext> context, const at::Tensor& output, const at::Tensor& input,
                   const SplitCounts& counts, const CollectiveId& id, std::unique_ptr<std::vector<uint64_t>> words)
    : Collective(std::move(context),
                 identify(CollectiveKind::kAllToAll, id, input, output.scalar_type(), 1.0, words.get()), words.get()),
      words_(std::move(words)),
      expected_(counts.receive) {
  const std::vector<at::Tensor> inputs = input.split_with_sizes(counts.send);
  const std::vector<at::Tensor> outputs = output.split_with_sizes(counts.receive);
  for_each_peer([&](int peer) { exchange_.receive(peer, outputs[static_cast<size_t>(peer)]); });
  for_each_peer([&](int peer) { exchange_.send(peer, inputs[static_cast<size_t>(peer)]); });
  const auto own = static_cast<size_t>(exchange_.rank());
  outputs[own].copy_(inputs[own]);
}

void AllToAll::finish() {
  exchange_.agree();
  exchange_.check_counts(expected_);
  exchange_.wait_received();
  exchange_.finish();
}

GatherBytes::GatherBytes(std::shared_ptr<ExchangeContext> context, const std::string& bytes, const CollectiveId& id)
    : Collective(std::move(context), identify_bytes(bytes, id), nullptr),
      result_(static_cast<size_t>(exchange_.size())) {
  result_[static_cast<size_t>(exchange_.rank())] = bytes;
  const at::Tensor own = exchange_.staging(static_cast<int64_t>(bytes.size()));
  if (!bytes.empty()) std::memcpy(own.mutable_data_ptr(), bytes.data(), bytes.size());
  for_each_peer([&](int peer) { exchange_.send(peer, own); });
}

void GatherBytes::finish() {
  exchange_.agree();
  std::vector<at::Tensor> received(result_.size());
  for_each_peer([&](int peer) {
    received[static_cast<size_t>(peer)] = exchange_.staging(exchange_.numels()[static_cast<size_t>(peer)]);
    exchange_.receive(peer, received[static_cast<size_t>(peer)]);
  });
  exchange_.wait_received();
  for_each_peer([&](int peer) {
    const auto& bytes = received[static_cast<size_t>(peer)];
    result_[static_cast<size_t>(peer)].assign(static_cast<const char*>(bytes.const_data_ptr()), bytes.nbytes());
  });
  exchange_.finish();
}

}  // namespace fsdp::comm
