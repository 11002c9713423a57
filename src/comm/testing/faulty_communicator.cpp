#include "comm/testing/faulty_communicator.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "comm/failure.h"
#include "comm/fake_communicator.h"

namespace fsdp::comm {
namespace {

bool is(const Fault* fault, Fault::What what) { return fault != nullptr && fault->what == what; }

void before_issue(const Fault* fault) {
  if (is(fault, Fault::What::kDelayIssue)) std::this_thread::sleep_for(fault->delay);
  if (is(fault, Fault::What::kFailIssue)) Failure{.reason = fault->message}.raise();
}

void before_wait(const Fault* fault) {
  if (is(fault, Fault::What::kDelayWait)) std::this_thread::sleep_for(fault->delay);
  if (is(fault, Fault::What::kFailWait)) Failure{.reason = fault->message}.raise();
}

}  // namespace

class FaultyCommunicator::FaultyWork final : public Work {
 public:
  FaultyWork(std::unique_ptr<Work> inner, Fault fault) : inner_(std::move(inner)), fault_(std::move(fault)) {}

  void wait() override {
    before_wait(&fault_);
    inner_->wait();
  }
  void advance() override { inner_->advance(); }

 private:
  std::unique_ptr<Work> inner_;
  Fault fault_;
};

FaultyCommunicator::FaultyCommunicator(std::shared_ptr<Communicator> inner, std::vector<Fault> faults)
    : ForwardingCommunicator(std::move(inner)), script_(std::make_shared<Script>(Script{std::move(faults)})) {}

const Fault* FaultyCommunicator::next_fault() {
  const auto index = script_->next_index++;
  const auto& faults = script_->faults;
  const auto found =
      std::find_if(faults.begin(), faults.end(), [&](const Fault& fault) { return fault.index == index; });
  return found == faults.end() ? nullptr : &*found;
}

template <typename Issue>
std::unique_ptr<Work> FaultyCommunicator::issue_with_faults(Issue issue) {
  const Fault* fault = next_fault();
  before_issue(fault);
  if (is(fault, Fault::What::kSkip)) return make_done_work();
  auto work = issue();
  return fault == nullptr ? std::move(work) : std::make_unique<FaultyWork>(std::move(work), *fault);
}

std::unique_ptr<Work> FaultyCommunicator::all_gather(at::Tensor output, at::Tensor input, const CollectiveId& id) {
  return issue_with_faults([&] { return inner()->all_gather(output, input, id); });
}

std::unique_ptr<Work> FaultyCommunicator::all_gather_ranges(at::Tensor tensor, const RankRanges& ranges,
                                                            const CollectiveId& id) {
  return issue_with_faults([&] { return inner()->all_gather_ranges(tensor, ranges, id); });
}

std::unique_ptr<Work> FaultyCommunicator::reduce_scatter(at::Tensor output, at::Tensor input,
                                                         const ReduceOptions& options, const CollectiveId& id,
                                                         std::vector<uint64_t>* flags) {
  return issue_with_faults([&] { return inner()->reduce_scatter(output, input, options, id, flags); });
}

std::unique_ptr<Work> FaultyCommunicator::all_reduce(at::Tensor output, at::Tensor tensor, const ReduceOptions& options,
                                                     const CollectiveId& id, std::vector<uint64_t>* flags) {
  return issue_with_faults([&] { return inner()->all_reduce(output, tensor, options, id, flags); });
}

std::unique_ptr<Work> FaultyCommunicator::broadcast(at::Tensor tensor, int root, const CollectiveId& id) {
  return issue_with_faults([&] { return inner()->broadcast(tensor, root, id); });
}

std::unique_ptr<Work> FaultyCommunicator::all_to_all(at::Tensor output, at::Tensor input, const SplitCounts& counts,
                                                     const CollectiveId& id) {
  return issue_with_faults([&] { return inner()->all_to_all(output, input, counts, id); });
}

std::unique_ptr<Work> FaultyCommunicator::send(at::Tensor tensor, int to, const CollectiveId& id) {
  return issue_with_faults([&] { return inner()->send(tensor, to, id); });
}

std::unique_ptr<Work> FaultyCommunicator::recv(at::Tensor output, int from, const CollectiveId& id) {
  return issue_with_faults([&] { return inner()->recv(output, from, id); });
}

std::vector<std::string> FaultyCommunicator::all_gather_bytes(const std::string& bytes, const CollectiveId& id) {
  const Fault* fault = next_fault();
  before_issue(fault);
  if (is(fault, Fault::What::kSkip)) return std::vector<std::string>(static_cast<size_t>(size()), bytes);
  before_wait(fault);
  return inner()->all_gather_bytes(bytes, id);
}

std::shared_ptr<Communicator> FaultyCommunicator::twin() {
  if (!twin_) {
    twin_ = std::make_shared<FaultyCommunicator>(inner()->twin(), std::vector<Fault>{});
    twin_->script_ = script_;
  }
  return twin_;
}

}  // namespace fsdp::comm
