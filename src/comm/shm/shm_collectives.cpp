#include "comm/shm/shm_collectives.h"

#include <ATen/ops/from_blob.h>

#include <numeric>
#include <utility>

#include "comm/collective_identities.h"
#include "comm/collective_shapes.h"
#include "comm/reduce_kernels.h"

namespace fsdp::comm {
namespace {

at::Tensor as_tensor(const std::string& bytes) {
  return at::from_blob(const_cast<char*>(bytes.data()), {static_cast<int64_t>(bytes.size())}, at::kByte);
}

CollectiveIdentity identify_shared(const SharedBuffer& buffer, const at::Tensor& output, const CollectiveId& id) {
  auto identity = identify(CollectiveKind::kAllGather, id, output, output.scalar_type(), 1.0, nullptr);
  identity.shared_buffer = buffer.number();
  return identity;
}

std::unique_ptr<std::vector<uint64_t>> counts_as_words(const SplitCounts& counts) {
  auto words = std::make_unique<std::vector<uint64_t>>(counts.send.begin(), counts.send.end());
  words->insert(words->end(), counts.receive.begin(), counts.receive.end());
  return words;
}

}  // namespace

void ShmCollective::finish() {
  if (!finished()) complete();
}

std::vector<at::Tensor> ShmCollective::parts_of_all(int64_t begin, int64_t numel, at::ScalarType dtype) const {
  std::vector<at::Tensor> parts;
  for (int peer = 0; peer < exchange_.size(); ++peer) parts.push_back(exchange_.payload_of(peer, begin, numel, dtype));
  return parts;
}

ShmAllGather::ShmAllGather(std::shared_ptr<ShmContext> context, at::Tensor output, const at::Tensor& input,
                           const CollectiveId& id)
    : ShmCollective(std::move(context),
                    identify(CollectiveKind::kAllGather, id, output, output.scalar_type(), 1.0, nullptr), {input},
                    nullptr),
      output_(std::move(output)) {
  copy_into_slice(output_, exchange_.rank(), input);
}

void ShmAllGather::complete() {
  exchange_.agree();
  const int64_t n = output_.numel() / exchange_.size();
  for (int step = 1; step < exchange_.size(); ++step) {
    const int peer = (exchange_.rank() + step) % exchange_.size();
    output_.narrow(0, peer * n, n).copy_(exchange_.payload_of(peer, 0, n, output_.scalar_type()));
  }
  exchange_.finish();
}

ShmSharedGather::ShmSharedGather(std::shared_ptr<ShmContext> context, std::shared_ptr<SharedBuffer> buffer,
                                 at::Tensor output, const CollectiveId& id)
    : ShmCollective(std::move(context), identify_shared(*buffer, output, id), {}, nullptr),
      buffer_(std::move(buffer)),
      output_(std::move(output)) {}

void ShmSharedGather::complete() {
  exchange_.agree();
  if (!buffer_->is_whole(output_)) output_.copy_(buffer_->tensor().view(output_.scalar_type()));
  exchange_.finish();
}

ShmReduceScatter::ShmReduceScatter(std::shared_ptr<ShmContext> context, at::Tensor output, const at::Tensor& input,
                                   const ReduceOptions& options, const CollectiveId& id, std::vector<uint64_t>* flags)
    : ShmCollective(std::move(context),
                    identify(CollectiveKind::kReduceScatter, id, input, output.scalar_type(), options.scale, flags),
                    {input, /*in_place=*/true}, flags),
      output_(std::move(output)),
      dtype_(input.scalar_type()),
      options_(options) {}

void ShmReduceScatter::complete() {
  exchange_.agree();
  const int64_t n = output_.numel();
  sum_in_order(output_, parts_of_all(exchange_.rank() * n, n, dtype_), options_.scale, options_.summary);
  exchange_.finish();
}

ShmAllReduce::ShmAllReduce(std::shared_ptr<ShmContext> context, at::Tensor output, const at::Tensor& tensor,
                           const ReduceOptions& options, const CollectiveId& id, std::vector<uint64_t>* flags)
    : ShmCollective(std::move(context),
                    identify(CollectiveKind::kAllReduce, id, tensor, output.scalar_type(), options.scale, flags),
                    {tensor, /*in_place=*/true}, flags),
      output_(std::move(output)),
      tensor_(tensor),
      options_(options) {}

void ShmAllReduce::advance() {
  if (std::exchange(reduced_, true)) return;
  exchange_.agree();
  const Part own = part_of(tensor_.numel(), exchange_.rank(), exchange_.size());
  const at::ScalarType dtype = tensor_.scalar_type();
  sum_in_order(exchange_.second_payload(own.numel, dtype), parts_of_all(own.begin, own.numel, dtype), options_.scale);
  exchange_.publish_second();
}

void ShmAllReduce::complete() {
  advance();
  std::vector<ReductionSummary> summaries(static_cast<size_t>(exchange_.size()));
  for (int step = 0; step < exchange_.size(); ++step) {
    const int peer = (exchange_.rank() + step) % exchange_.size();
    const Part part = part_of(tensor_.numel(), peer, exchange_.size());
    const at::Tensor output = output_.narrow(0, part.begin, part.numel);
    const at::Tensor sums = exchange_.second_of(peer, part.numel, tensor_.scalar_type());
    if (options_.summary != nullptr) {
      sum_in_order(output, {sums}, 1.0, &summaries[static_cast<size_t>(peer)]);
    } else {
      output.copy_(sums);
    }
  }
  if (options_.summary != nullptr) *options_.summary = merged(summaries);
  exchange_.finish();
}

ShmBroadcast::ShmBroadcast(const std::shared_ptr<ShmContext>& context, const at::Tensor& tensor, int root,
                           const CollectiveId& id)
    : ShmCollective(context, identify_broadcast(tensor, root, id),
                    {context->host->rank() == root ? tensor : at::Tensor()}, nullptr),
      tensor_(tensor),
      root_(root) {}

void ShmBroadcast::complete() {
  exchange_.agree();
  if (exchange_.rank() != root_) tensor_.copy_(exchange_.payload_of(root_, 0, tensor_.numel(), tensor_.scalar_type()));
  exchange_.finish();
}

ShmAllToAll::ShmAllToAll(std::shared_ptr<ShmContext> context, const at::Tensor& output, const at::Tensor& input,
                         const SplitCounts& counts, const CollectiveId& id)
    : ShmAllToAll(std::move(context), output, input, counts, id, counts_as_words(counts)) {}

// Flags are OR-ed in place, so `words` belongs to this object alone. The counts of other ranks are read from their
// posts.
ShmAllToAll::ShmAllToAll(std::shared_ptr<ShmContext> context, const at::Tensor& output, const at::Tensor& input,
                         const SplitCounts& counts, const CollectiveId& id,
                         std::unique_ptr<std::vector<uint64_t>> words)
    : ShmCollective(std::move(context),
                    identify(CollectiveKind::kAllToAll, id, input, output.scalar_type(), 1.0, words.get()), {input},
                    words.get()),
      words_(std::move(words)),
      output_(output),
      expected_(counts.receive) {}

void ShmAllToAll::complete() {
  exchange_.agree();
  exchange_.check_counts();
  int64_t end = 0;
  for (int peer = 0; peer < exchange_.size(); ++peer) {
    int64_t begin = 0;
    for (int rank = 0; rank < exchange_.rank(); ++rank) {
      begin += static_cast<int64_t>(exchange_.flag_word_of(peer, static_cast<size_t>(rank)));
    }
    const int64_t count = expected_[static_cast<size_t>(peer)];
    output_.narrow(0, end, count).copy_(exchange_.payload_of(peer, begin, count, output_.scalar_type()));
    end += count;
  }
  exchange_.finish();
}

ShmGatherBytes::ShmGatherBytes(std::shared_ptr<ShmContext> context, const std::string& bytes, const CollectiveId& id)
    : ShmCollective(std::move(context), identify_bytes(bytes, id), {as_tensor(bytes)}, nullptr) {}

void ShmGatherBytes::complete() {
  exchange_.agree();
  for (int peer = 0; peer < exchange_.size(); ++peer) {
    const at::Tensor bytes = exchange_.payload_of(peer, 0, exchange_.numels()[static_cast<size_t>(peer)], at::kByte);
    result_.emplace_back(static_cast<const char*>(bytes.const_data_ptr()), bytes.nbytes());
  }
  exchange_.finish();
}

void ShmInFlight::make_room(Advancing& advancing) {
  while (!queue_.empty()) {
    const auto oldest = queue_.front().lock();
    if (oldest && !oldest->finished()) {
      if (context_->next_sequence < oldest->sequence() + ShmBoard::kDepth) return;
      advancing.finish(*oldest);
    }
    queue_.pop_front();
  }
}

}  // namespace fsdp::comm
