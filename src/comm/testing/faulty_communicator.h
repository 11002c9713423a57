// A communicator in which chosen collectives are late, fail or are skipped, for tests of errors.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/forwarding_communicator.h"
#include "fsdp/communicator.h"

namespace fsdp::comm {

struct Fault {
  enum class What : uint8_t {
    kDelayIssue,  // sleeps for `delay`, then issues
    kDelayWait,   // sleeps for `delay` before it waits
    kFailIssue,   // throws `message` instead of issuing: the other ranks wait for this one
    kFailWait,    // issues, then throws `message` instead of waiting
    kSkip,        // does nothing and reports that it is done: this rank goes on to its next collective
  };
  int64_t index = 0;  // of the collective, counted from 0 over all kinds, in order of issue
  What what = What::kFailIssue;
  std::chrono::milliseconds delay{0};
  std::string message = "injected fault";
};

class FaultyCommunicator final : public ForwardingCommunicator {
 public:
  FaultyCommunicator(std::shared_ptr<Communicator> inner, std::vector<Fault> faults);

  std::unique_ptr<Work> all_gather(at::Tensor output, at::Tensor input, const CollectiveId& id) override;
  std::unique_ptr<Work> all_gather_ranges(at::Tensor tensor, const RankRanges& ranges, const CollectiveId& id) override;
  std::unique_ptr<Work> reduce_scatter(at::Tensor output, at::Tensor input, const ReduceOptions& options,
                                       const CollectiveId& id, std::vector<uint64_t>* flags = nullptr) override;
  std::unique_ptr<Work> all_reduce(at::Tensor output, at::Tensor tensor, const ReduceOptions& options,
                                   const CollectiveId& id, std::vector<uint64_t>* flags = nullptr) override;
  std::unique_ptr<Work> broadcast(at::Tensor tensor, int root, const CollectiveId& id) override;
  std::unique_ptr<Work> all_to_all(at::Tensor output, at::Tensor input, const SplitCounts& counts,
                                   const CollectiveId& id) override;
  // Messages are counted like collectives.
  std::unique_ptr<Work> send(at::Tensor tensor, int to, const CollectiveId& id) override;
  std::unique_ptr<Work> recv(at::Tensor output, int from, const CollectiveId& id) override;
  // Blocks, so the faults of waiting occur when it is issued, before the inner call. If it is skipped, it returns this
  // rank's bytes for each rank.
  std::vector<std::string> all_gather_bytes(const std::string& bytes, const CollectiveId& id) override;
  // Returns a twin that shares the faults and the count of collectives with this communicator.
  std::shared_ptr<Communicator> twin() override;

 private:
  class FaultyWork;

  const Fault* next_fault();
  template <typename Issue>
  std::unique_ptr<Work> issue_with_faults(Issue issue);

  struct Script {
    std::vector<Fault> faults;
    int64_t next_index = 0;
  };
  std::shared_ptr<Script> script_;
  std::shared_ptr<FaultyCommunicator> twin_;
};

}  // namespace fsdp::comm
