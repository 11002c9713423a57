// The collectives in flight over memory that the ranks of a host share.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/pending_collective.h"
#include "comm/shared_buffer.h"
#include "comm/shm_exchange.h"

namespace fsdp {

class ShmCollective : public PendingCollective {
 public:
  ShmCollective(std::shared_ptr<ShmContext> context, CollectiveIdentity identity, const ShmExchange::Payload& payload,
                std::vector<uint64_t>* flags)
      : exchange_(std::move(context), std::move(identity), payload, flags) {}
  uint64_t sequence() const override { return exchange_.sequence(); }

 protected:
  // This slice of what each rank has posted, where it lies, in rank order; behind agree().
  std::vector<at::Tensor> parts_of_all(int64_t begin, int64_t numel, at::ScalarType dtype) const;

  ShmExchange exchange_;
};

// Each rank copies the others' shards from where they lie.
class ShmAllGather final : public ShmCollective {
 public:
  ShmAllGather(std::shared_ptr<ShmContext> context, at::Tensor output, const at::Tensor& input, const CollectiveId& id);
  void finish() override;

 private:
  at::Tensor output_;
};

// The shards lie in a buffer of all ranks, end to end: each rank waits until all have come to the collective. `output`
// may be that buffer.
class ShmSharedGather final : public ShmCollective {
 public:
  ShmSharedGather(std::shared_ptr<ShmContext> context, std::shared_ptr<SharedBuffer> buffer, at::Tensor output,
                  const CollectiveId& id);
  void finish() override;

 private:
  std::shared_ptr<SharedBuffer> buffer_;
  at::Tensor output_;
};

// Each rank sums its slice of what all have posted, in rank order, where it lies.
class ShmReduceScatter final : public ShmCollective {
 public:
  ShmReduceScatter(std::shared_ptr<ShmContext> context, at::Tensor output, const at::Tensor& input,
                   const ReduceOptions& options, const CollectiveId& id, std::vector<uint64_t>* flags);
  void finish() override;

 private:
  at::Tensor output_;
  at::ScalarType dtype_;
  ReduceOptions options_;
};

// A reduce-scatter over contiguous parts of nearly equal size; each rank copies the others' sums. `output` may be
// `tensor`, also where others read that in place: a part is read by its owner alone, before it publishes the sum.
class ShmAllReduce final : public ShmCollective {
 public:
  ShmAllReduce(std::shared_ptr<ShmContext> context, at::Tensor output, const at::Tensor& tensor,
               const ReduceOptions& options, const CollectiveId& id, std::vector<uint64_t>* flags);
  void advance() override;
  void finish() override;

 private:
  at::Tensor output_;
  at::Tensor tensor_;
  ReduceOptions options_;
  bool reduced_ = false;
};

class ShmBroadcast final : public ShmCollective {
 public:
  ShmBroadcast(std::shared_ptr<ShmContext> context, const at::Tensor& tensor, int root, const CollectiveId& id);
  void finish() override;

 private:
  at::Tensor tensor_;
  int root_;
};

// What each rank sends to each and expects from each goes with the posts, as flags.
class ShmAllToAll final : public ShmCollective {
 public:
  ShmAllToAll(std::shared_ptr<ShmContext> context, const at::Tensor& output, const at::Tensor& input,
              const SplitCounts& counts, const CollectiveId& id);
  void finish() override;

 private:
  ShmAllToAll(std::shared_ptr<ShmContext> context, const at::Tensor& output, const at::Tensor& input,
              const SplitCounts& counts, const CollectiveId& id, std::unique_ptr<std::vector<uint64_t>> words);

  std::unique_ptr<std::vector<uint64_t>> words_;
  at::Tensor output_;
  std::vector<int64_t> expected_;
};

class ShmGatherBytes final : public ShmCollective {
 public:
  ShmGatherBytes(std::shared_ptr<ShmContext> context, const std::string& bytes, const CollectiveId& id);
  void finish() override;
  std::vector<std::string> take_result() { return std::move(result_); }

 private:
  std::vector<std::string> result_;
};

}  // namespace fsdp
