#include "comm/testing/recording_communicator.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <utility>

namespace fsdp::comm {

struct RecordingCommunicator::Log {
  std::vector<CollectiveEvent> events;
  int64_t next_index = 0;

  void record_wait(CollectiveEvent event) {
    event.what = CollectiveEvent::What::kWait;
    events.push_back(std::move(event));
  }
};

class RecordingCommunicator::RecordingWork final : public Work {
 public:
  RecordingWork(std::unique_ptr<Work> inner, CollectiveEvent event, std::shared_ptr<Log> log)
      : inner_(std::move(inner)), event_(std::move(event)), log_(std::move(log)) {}

  void wait() override {
    inner_->wait();
    log_->record_wait(event_);
  }
  void advance() override { inner_->advance(); }

 private:
  std::unique_ptr<Work> inner_;
  CollectiveEvent event_;
  std::shared_ptr<Log> log_;
};

std::string to_string(const CollectiveEvent& event) {
  return c10::str(event.what == CollectiveEvent::What::kIssue ? "issue " : "wait ", event.index, ": ",
                  describe(to_string(event.kind), event.id), ", ", event.numel, " ", event.dtype);
}

RecordingCommunicator::RecordingCommunicator(std::shared_ptr<Communicator> inner)
    : ForwardingCommunicator(std::move(inner)), log_(std::make_shared<Log>()) {}

CollectiveEvent RecordingCommunicator::record_issue(CollectiveKind kind, const CollectiveId& id, int64_t numel,
                                                    at::ScalarType dtype) {
  CollectiveEvent event;
  event.index = log_->next_index++;
  event.kind = kind;
  event.id = id;
  event.numel = numel;
  event.dtype = dtype;
  event.twin = is_twin_;
  log_->events.push_back(event);
  return event;
}

std::unique_ptr<Work> RecordingCommunicator::wrap(std::unique_ptr<Work> work, CollectiveEvent event) {
  return std::make_unique<RecordingWork>(std::move(work), std::move(event), log_);
}

std::unique_ptr<Work> RecordingCommunicator::all_gather(at::Tensor output, at::Tensor input, const CollectiveId& id) {
  auto event = record_issue(CollectiveKind::kAllGather, id, output.numel(), input.scalar_type());
  return wrap(inner()->all_gather(std::move(output), std::move(input), id), std::move(event));
}

std::unique_ptr<Work> RecordingCommunicator::all_gather_ranges(at::Tensor tensor, const RankRanges& ranges,
                                                               const CollectiveId& id) {
  auto event = record_issue(CollectiveKind::kAllGather, id, tensor.numel(), tensor.scalar_type());
  return wrap(inner()->all_gather_ranges(std::move(tensor), ranges, id), std::move(event));
}

std::unique_ptr<Work> RecordingCommunicator::reduce_scatter(at::Tensor output, at::Tensor input,
                                                            const ReduceOptions& options, const CollectiveId& id,
                                                            std::vector<uint64_t>* flags) {
  auto event = record_issue(CollectiveKind::kReduceScatter, id, input.numel(), input.scalar_type());
  return wrap(inner()->reduce_scatter(std::move(output), std::move(input), options, id, flags), std::move(event));
}

std::unique_ptr<Work> RecordingCommunicator::all_reduce(at::Tensor output, at::Tensor tensor,
                                                        const ReduceOptions& options, const CollectiveId& id,
                                                        std::vector<uint64_t>* flags) {
  auto event = record_issue(CollectiveKind::kAllReduce, id, tensor.numel(), tensor.scalar_type());
  return wrap(inner()->all_reduce(std::move(output), std::move(tensor), options, id, flags), std::move(event));
}

std::unique_ptr<Work> RecordingCommunicator::broadcast(at::Tensor tensor, int root, const CollectiveId& id) {
  auto event = record_issue(CollectiveKind::kBroadcast, id, tensor.numel(), tensor.scalar_type());
  return wrap(inner()->broadcast(std::move(tensor), root, id), std::move(event));
}

std::unique_ptr<Work> RecordingCommunicator::all_to_all(at::Tensor output, at::Tensor input, const SplitCounts& counts,
                                                        const CollectiveId& id) {
  auto event = record_issue(CollectiveKind::kAllToAll, id, input.numel(), input.scalar_type());
  return wrap(inner()->all_to_all(std::move(output), std::move(input), counts, id), std::move(event));
}

std::unique_ptr<Work> RecordingCommunicator::send(at::Tensor tensor, int to, const CollectiveId& id) {
  auto event = record_issue(CollectiveKind::kMessage, id, tensor.numel(), tensor.scalar_type());
  return wrap(inner()->send(std::move(tensor), to, id), std::move(event));
}

std::unique_ptr<Work> RecordingCommunicator::recv(at::Tensor output, int from, const CollectiveId& id) {
  auto event = record_issue(CollectiveKind::kMessage, id, output.numel(), output.scalar_type());
  return wrap(inner()->recv(std::move(output), from, id), std::move(event));
}

std::vector<std::string> RecordingCommunicator::all_gather_bytes(const std::string& bytes, const CollectiveId& id) {
  auto event = record_issue(CollectiveKind::kGatherBytes, id, static_cast<int64_t>(bytes.size()), at::kByte);
  auto result = inner()->all_gather_bytes(bytes, id);
  log_->record_wait(std::move(event));
  return result;
}

std::shared_ptr<Communicator> RecordingCommunicator::twin() {
  if (!twin_) {
    twin_ = std::make_shared<RecordingCommunicator>(inner()->twin());
    twin_->log_ = log_;
    twin_->is_twin_ = true;
  }
  return twin_;
}

std::shared_ptr<Communicator> RecordingCommunicator::subgroup(const std::vector<int>& members, const CollectiveId& id) {
  return subgroups_.emplace_back(std::make_shared<RecordingCommunicator>(inner()->subgroup(members, id)));
}

const std::vector<CollectiveEvent>& RecordingCommunicator::events() const { return log_->events; }

int64_t RecordingCommunicator::count(CollectiveKind kind) const {
  return std::count_if(log_->events.begin(), log_->events.end(), [&](const CollectiveEvent& event) {
    return event.what == CollectiveEvent::What::kIssue && event.kind == kind;
  });
}

void RecordingCommunicator::clear() { log_->events.clear(); }

}  // namespace fsdp::comm
