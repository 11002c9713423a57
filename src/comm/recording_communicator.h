// A communicator that forwards every call and keeps a log: what was issued and waited for, in which order.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/collective_shapes.h"
#include "fsdp/communicator.h"

namespace fsdp {

struct CollectiveEvent {
  enum class What : uint8_t { kIssue, kWait };
  What what = What::kIssue;
  int64_t index = 0;  // counts the collectives, in order of issue; equal for the issue and the wait of one
  CollectiveKind kind = CollectiveKind::kAllGather;
  CollectiveId id;
  int64_t numel = 0;                 // as CollectiveIdentity::numel
  at::ScalarType dtype = at::kByte;  // dtype of the data that is sent
  bool twin = false;                 // whether through the twin
};
// Formats an event: "issue 3: all-gather of 'layer.3' (forward, generation 7), 1024 Float".
std::string to_string(const CollectiveEvent& event);

class RecordingCommunicator final : public Communicator {
 public:
  explicit RecordingCommunicator(std::shared_ptr<Communicator> inner);

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  std::string backend() const override { return inner_->backend(); }
  std::unique_ptr<Work> all_gather(at::Tensor output, at::Tensor input, const CollectiveId& id) override;
  std::unique_ptr<Work> reduce_scatter(at::Tensor output, at::Tensor input, const ReduceOptions& options,
                                       const CollectiveId& id, std::vector<uint64_t>* flags = nullptr) override;
  std::unique_ptr<Work> all_reduce(at::Tensor output, at::Tensor tensor, const ReduceOptions& options,
                                   const CollectiveId& id, std::vector<uint64_t>* flags = nullptr) override;
  std::unique_ptr<Work> broadcast(at::Tensor tensor, int root, const CollectiveId& id) override;
  std::unique_ptr<Work> all_to_all(at::Tensor output, at::Tensor input, const SplitCounts& counts,
                                   const CollectiveId& id) override;
  std::vector<std::string> all_gather_bytes(const std::string& bytes, const CollectiveId& id) override;
  // Returns a subgroup of the inner communicator, which is not recorded.
  std::shared_ptr<Communicator> subgroup(const std::vector<int>& members, const CollectiveId& id) override {
    return inner_->subgroup(members, id);
  }
  // The twin writes to the same log.
  std::shared_ptr<Communicator> twin() override;
  std::vector<uint64_t> bytes_sent_to() const override { return inner_->bytes_sent_to(); }
  bool carries_identity() const override { return inner_->carries_identity(); }
  std::shared_ptr<MeetingPoint> meeting_point() const override { return inner_->meeting_point(); }
  std::chrono::milliseconds timeout() const override { return inner_->timeout(); }
  int world_rank(int rank) const override { return inner_->world_rank(rank); }
  void abort(const std::string& reason) override { inner_->abort(reason); }
  void trim() override { inner_->trim(); }
  at::Tensor shared_buffer(int64_t nbytes, const SharedBufferOptions& options, const CollectiveId& id) override {
    return inner_->shared_buffer(nbytes, options, id);
  }
  void share_buffers(int64_t further, const CollectiveId& id) override { inner_->share_buffers(further, id); }
  void await_readers(const at::Tensor& buffer, const CollectiveId& id) override { inner_->await_readers(buffer, id); }
  at::Tensor reduction_input(int64_t nbytes) override { return inner_->reduction_input(nbytes); }
  bool reads_in_place() const override { return inner_->reads_in_place(); }

  // Waits are logged when they have succeeded; a gather of bytes is logged as an issue and a wait. Not
  // thread-safe.
  const std::vector<CollectiveEvent>& events() const;
  // Returns the number of issued collectives of a kind.
  int64_t count(CollectiveKind kind) const;
  // Forgets the events; indices continue.
  void clear();

 private:
  struct Log;
  class RecordingWork;

  CollectiveEvent record_issue(CollectiveKind kind, const CollectiveId& id, int64_t numel, at::ScalarType dtype);
  std::unique_ptr<Work> wrap(std::unique_ptr<Work> work, CollectiveEvent event);

  std::shared_ptr<Communicator> inner_;
  std::shared_ptr<Log> log_;
  std::shared_ptr<RecordingCommunicator> twin_;
  bool is_twin_ = false;
};

}  // namespace fsdp
