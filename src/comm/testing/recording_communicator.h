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
#include "comm/forwarding_communicator.h"
#include "fsdp/communicator.h"

namespace fsdp::comm {

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

class RecordingCommunicator final : public ForwardingCommunicator {
 public:
  explicit RecordingCommunicator(std::shared_ptr<Communicator> inner);

  std::unique_ptr<Work> all_gather(at::Tensor output, at::Tensor input, const CollectiveId& id) override;
  std::unique_ptr<Work> all_gather_ranges(at::Tensor tensor, const RankRanges& ranges, const CollectiveId& id) override;
  std::unique_ptr<Work> reduce_scatter(at::Tensor output, at::Tensor input, const ReduceOptions& options,
                                       const CollectiveId& id, std::vector<uint64_t>* flags = nullptr) override;
  std::unique_ptr<Work> all_reduce(at::Tensor output, at::Tensor tensor, const ReduceOptions& options,
                                   const CollectiveId& id, std::vector<uint64_t>* flags = nullptr) override;
  std::unique_ptr<Work> broadcast(at::Tensor tensor, int root, const CollectiveId& id) override;
  std::unique_ptr<Work> all_to_all(at::Tensor output, at::Tensor input, const SplitCounts& counts,
                                   const CollectiveId& id) override;
  // Logged as collectives of kind kMessage.
  std::unique_ptr<Work> send(at::Tensor tensor, int to, const CollectiveId& id) override;
  std::unique_ptr<Work> recv(at::Tensor output, int from, const CollectiveId& id) override;
  std::vector<std::string> all_gather_bytes(const std::string& bytes, const CollectiveId& id) override;
  // The twin writes to the same log.
  std::shared_ptr<Communicator> twin() override;
  // The groups that are made of this one are recorded, too, each in a log of its own.
  std::shared_ptr<Communicator> subgroup(const std::vector<int>& members, const CollectiveId& id) override;
  const std::vector<std::shared_ptr<RecordingCommunicator>>& subgroups() const { return subgroups_; }

  // Waits are logged when they have succeeded; a gather of bytes is logged as an issue and a wait. Not
  // thread-safe.
  const std::vector<CollectiveEvent>& events() const;
  // Returns the number of issued collectives of a kind.
  int64_t count(CollectiveKind kind) const;
  // Clears the events; indices continue.
  void clear();

 private:
  struct Log;
  class RecordingWork;

  CollectiveEvent record_issue(CollectiveKind kind, const CollectiveId& id, int64_t numel, at::ScalarType dtype);
  std::unique_ptr<Work> wrap(std::unique_ptr<Work> work, CollectiveEvent event);

  std::shared_ptr<Log> log_;
  std::shared_ptr<RecordingCommunicator> twin_;
  std::vector<std::shared_ptr<RecordingCommunicator>> subgroups_;
  bool is_twin_ = false;
};

}  // namespace fsdp::comm
