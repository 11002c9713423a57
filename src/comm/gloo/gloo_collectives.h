// Collectives in flight over Gloo, in terms of messages. Each posts its messages in its constructor, without blocking.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/exchange.h"
#include "comm/pending_collective.h"
#include "fsdp/communicator.h"

namespace fsdp::comm {

class Collective : public PendingCollective {
 public:
  Collective(std::shared_ptr<ExchangeContext> context, CollectiveIdentity identity, std::vector<uint64_t>* flags)
      : exchange_(std::move(context), std::move(identity), flags) {}
  uint64_t sequence() const override { return exchange_.sequence(); }
  // Waits for the payloads: all that is left to do where they arrive in their places.
  void finish() override;

 protected:
  // Calls `action` for each other rank, the next one first, so that not all ranks address the same one at once.
  template <typename Action>
  void for_each_peer(Action action) {
    for (int step = 1; step < exchange_.size(); ++step) action((exchange_.rank() + step) % exchange_.size());
  }

  Exchange exchange_;
};

// Each rank sends its shard directly into the slice of the other ranks' outputs that belongs to the shard.
class AllGather final : public Collective {
 public:
  AllGather(std::shared_ptr<ExchangeContext> context, at::Tensor output, const at::Tensor& input,
            const CollectiveId& id);
};

// Each rank sends each of its ranges directly into the same range of the other ranks' tensors.
class AllGatherRanges final : public Collective {
 public:
  AllGatherRanges(std::shared_ptr<ExchangeContext> context, const at::Tensor& tensor, const RankRanges& ranges,
                  const CollectiveId& id);
};

// Each rank receives the others' contributions to its slice into staging memory and sums them in rank order.
class ReduceScatter final : public Collective {
 public:
  ReduceScatter(std::shared_ptr<ExchangeContext> context, at::Tensor output, const at::Tensor& input,
                const ReduceOptions& options, const CollectiveId& id, std::vector<uint64_t>* flags);
  void finish() override;

 private:
  at::Tensor output_;
  std::vector<at::Tensor> parts_;
  ReduceOptions options_;
};

// A reduce-scatter over contiguous parts of nearly equal size, then an all-gather of the sums.
class AllReduce final : public Collective {
 public:
  AllReduce(std::shared_ptr<ExchangeContext> context, at::Tensor output, const at::Tensor& tensor,
            const ReduceOptions& options, const CollectiveId& id, std::vector<uint64_t>* flags);
  void advance() override;
  void finish() override;

 private:
  at::Tensor own_slice(const at::Tensor& tensor, int rank) const;

  at::Tensor output_;
  at::Tensor sums_;  // receives the results: output_, or the input if dtypes differ
  std::vector<at::Tensor> parts_;
  ReduceOptions options_;
  bool reduced_ = false;
};

class Broadcast final : public Collective {
 public:
  Broadcast(std::shared_ptr<ExchangeContext> context, const at::Tensor& tensor, int root, const CollectiveId& id);
};

// Each rank sends each part directly into its place in the other rank's output. Send counts travel as flags, so that a
// rank notices if another one sends it another number of elements than it expects.
class AllToAll final : public Collective {
 public:
  AllToAll(std::shared_ptr<ExchangeContext> context, const at::Tensor& output, const at::Tensor& input,
           const SplitCounts& counts, const CollectiveId& id);
  void finish() override;

 private:
  AllToAll(std::shared_ptr<ExchangeContext> context, const at::Tensor& output, const at::Tensor& input,
           const SplitCounts& counts, const CollectiveId& id, std::unique_ptr<std::vector<uint64_t>> words);

  std::unique_ptr<std::vector<uint64_t>> words_;  // the exchange refers to them
  std::vector<int64_t> expected_;
};

class GatherBytes final : public Collective {
 public:
  GatherBytes(std::shared_ptr<ExchangeContext> context, const std::string& bytes, const CollectiveId& id);
  void finish() override;
  std::vector<std::string> take_result() { return std::move(result_); }

 private:
  std::vector<std::string> result_;
};

}  // namespace fsdp::comm
