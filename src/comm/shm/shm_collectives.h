// Collectives in flight over memory that the ranks of a host share.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/pending_collective.h"
#include "comm/shm/shared_buffer.h"
#include "comm/shm/shm_exchange.h"

namespace fsdp::comm {

// A collective in flight. finish() may be called before its Work is waited for: see ShmInFlight.
class ShmCollective : public PendingCollective {
 public:
  ShmCollective(std::shared_ptr<ShmContext> context, CollectiveIdentity identity, const ShmExchange::Payload& payload,
                std::vector<uint64_t>* flags)
      : exchange_(std::move(context), std::move(identity), payload, flags) {}
  uint64_t sequence() const override { return exchange_.sequence(); }
  void finish() final;
  bool finished() const { return exchange_.finished(); }

 protected:
  // Blocks until the result is in place, then finishes the exchange.
  virtual void complete() = 0;
  // Returns this slice of each rank's payload, in place, in rank order. Call it after agree().
  std::vector<at::Tensor> parts_of_all(int64_t begin, int64_t numel, at::ScalarType dtype) const;

  ShmExchange exchange_;
};

// Each rank copies the others' shards directly from their memory.
class ShmAllGather final : public ShmCollective {
 public:
  ShmAllGather(std::shared_ptr<ShmContext> context, at::Tensor output, const at::Tensor& input, const CollectiveId& id);

 private:
  void complete() override;

  at::Tensor output_;
};

// Gathers shards that lie in a buffer of all ranks, end to end: each rank waits until all have reached the collective.
// `output` may be that buffer.
class ShmSharedGather final : public ShmCollective {
 public:
  ShmSharedGather(std::shared_ptr<ShmContext> context, std::shared_ptr<SharedBuffer> buffer, at::Tensor output,
                  const CollectiveId& id);

 private:
  void complete() override;

  std::shared_ptr<SharedBuffer> buffer_;
  at::Tensor output_;
};

// Each rank sums its slice of all payloads, in rank order, reading them in place.
class ShmReduceScatter final : public ShmCollective {
 public:
  ShmReduceScatter(std::shared_ptr<ShmContext> context, at::Tensor output, const at::Tensor& input,
                   const ReduceOptions& options, const CollectiveId& id, std::vector<uint64_t>* flags);

 private:
  void complete() override;

  at::Tensor output_;
  at::ScalarType dtype_;
  ReduceOptions options_;
};

// A reduce-scatter over contiguous parts of nearly equal size, after which each rank copies the others' sums. `output`
// may be `tensor`, even if others read `tensor` in place: only the owner of a part reads that part, and it does so
// before it publishes the sum.
class ShmAllReduce final : public ShmCollective {
 public:
  ShmAllReduce(std::shared_ptr<ShmContext> context, at::Tensor output, const at::Tensor& tensor,
               const ReduceOptions& options, const CollectiveId& id, std::vector<uint64_t>* flags);
  void advance() override;

 private:
  void complete() override;

  at::Tensor output_;
  at::Tensor tensor_;
  ReduceOptions options_;
  bool reduced_ = false;
};

class ShmBroadcast final : public ShmCollective {
 public:
  ShmBroadcast(const std::shared_ptr<ShmContext>& context, const at::Tensor& tensor, int root, const CollectiveId& id);

 private:
  void complete() override;

  at::Tensor tensor_;
  int root_;
};

// The counts that each rank sends to each rank and expects from each rank travel with the posts, as flags.
class ShmAllToAll final : public ShmCollective {
 public:
  ShmAllToAll(std::shared_ptr<ShmContext> context, const at::Tensor& output, const at::Tensor& input,
              const SplitCounts& counts, const CollectiveId& id);

 private:
  ShmAllToAll(std::shared_ptr<ShmContext> context, const at::Tensor& output, const at::Tensor& input,
              const SplitCounts& counts, const CollectiveId& id, std::unique_ptr<std::vector<uint64_t>> words);
  void complete() override;

  std::unique_ptr<std::vector<uint64_t>> words_;
  at::Tensor output_;
  std::vector<int64_t> expected_;
};

class ShmGatherBytes final : public ShmCollective {
 public:
  ShmGatherBytes(std::shared_ptr<ShmContext> context, const std::string& bytes, const CollectiveId& id);
  std::vector<std::string> take_result() { return std::move(result_); }

 private:
  void complete() override;

  std::vector<std::string> result_;
};

// [Note: room on the board]
// A rank's post is reused kDepth collectives later, once all ranks have finished the earlier collective. A caller may
// issue any number of collectives before it waits for one: for example, a reduction may be in flight while a unit is
// gathered for each of its operators. So before it issues a collective, a rank finishes its own collectives that are
// kDepth older; waiting for them afterwards does nothing more. Finishing waits for other ranks as their Work would,
// only earlier, and all ranks issue in the same order, so ranks cannot wait in a circle.
class ShmInFlight {
 public:
  explicit ShmInFlight(std::shared_ptr<ShmContext> context) : context_(std::move(context)) {}
  // Makes room for the next collective of this group.
  void make_room(Advancing& advancing) FSDP_REQUIRES(advancing.in_use);
  void add(std::weak_ptr<ShmCollective> collective) { queue_.push_back(std::move(collective)); }

 private:
  std::shared_ptr<ShmContext> context_;
  std::deque<std::weak_ptr<ShmCollective>> queue_;  // in order of issue; some are finished or destroyed
};

}  // namespace fsdp::comm
