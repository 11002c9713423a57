// A communicator that writes its collectives to the flight record and, at the steps that DebugOptions select, compares
// them over the ranks by fingerprints.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/checked/collective_monitor.h"
#include "comm/collective_header.h"
#include "comm/forwarding_communicator.h"
#include "fsdp/communicator.h"

namespace fsdp::comm {

// [Note: fingerprints]
// An all-gather of fingerprints (256 bytes for each rank) precedes each checked collective. It runs over the *control
// group*: the same ranks over a backend whose collectives carry an identity, with connections of their own. It is
// issued before the collective, without blocking, and compared in wait() or advance(), before the collective itself is
// waited for. So a rank never waits for data that do not belong to the collective it issued. A fingerprint contains the
// collective's identity, its number in this group, and the step. All ranks of a group compare the same fingerprints and
// throw the same error. A rank whose collective fails while it waits ends all groups that it belongs to
// (CollectiveMonitor::abort), as Gloo does by itself, so that ranks that wait in other groups get the error as well.
//
// Numbers count all collectives, checked or not. If ranks disagree about the step, one rank may check a collective that
// another rank does not check. The rank that checks then waits until the other one comes to a checked collective, finds
// another number there, and both stop. Twins and subgroups have control groups of their own, because their collectives
// have an order of their own.
class CheckedCommunicator final : public ForwardingCommunicator {
 public:
  // Returns the wrapper of `inner`: always the same one while it lives, and later ones report to the same group of the
  // record. `monitor`: used by the first call only (watched_mesh compares the options of later calls). Collective and
  // blocking if a control group must be made. `name`: the name of the group in the record and in errors.
  static std::shared_ptr<CheckedCommunicator> over(const std::shared_ptr<Communicator>& inner,
                                                   const std::shared_ptr<CollectiveMonitor>& monitor,
                                                   const std::string& name);
  // Returns the monitor of the group that was made over `inner`, or null if none was made.
  static std::shared_ptr<CollectiveMonitor> monitor_over(Communicator& inner);

  std::unique_ptr<Work> all_gather(at::Tensor output, at::Tensor input, const CollectiveId& id) override;
  std::unique_ptr<Work> all_gather_ranges(at::Tensor tensor, const RankRanges& ranges, const CollectiveId& id) override;
  std::unique_ptr<Work> reduce_scatter(at::Tensor output, at::Tensor input, const ReduceOptions& options,
                                       const CollectiveId& id, std::vector<uint64_t>* flags = nullptr) override;
  std::unique_ptr<Work> all_reduce(at::Tensor output, at::Tensor tensor, const ReduceOptions& options,
                                   const CollectiveId& id, std::vector<uint64_t>* flags = nullptr) override;
  std::unique_ptr<Work> broadcast(at::Tensor tensor, int root, const CollectiveId& id) override;
  std::unique_ptr<Work> all_to_all(at::Tensor output, at::Tensor input, const SplitCounts& counts,
                                   const CollectiveId& id) override;
  // Messages are recorded and watched, each direction between two ranks as a group of its own; their fingerprints are
  // not compared.
  std::unique_ptr<Work> send(at::Tensor tensor, int to, const CollectiveId& id) override;
  std::unique_ptr<Work> recv(at::Tensor output, int from, const CollectiveId& id) override;
  std::vector<std::string> all_gather_bytes(const std::string& bytes, const CollectiveId& id) override;
  std::shared_ptr<Communicator> subgroup(const std::vector<int>& members, const CollectiveId& id) override;
  std::shared_ptr<Communicator> twin() override;
  void abort(const std::string& reason) override;

  const std::shared_ptr<CollectiveMonitor>& monitor() const;

 private:
  struct Group;
  class Flight;
  class CheckedWork;

  CheckedCommunicator(std::shared_ptr<Communicator> inner, std::shared_ptr<Group> group);
  static std::shared_ptr<Group> make_group(const std::shared_ptr<Communicator>& inner,
                                           const std::shared_ptr<CollectiveMonitor>& monitor, const std::string& name,
                                           std::shared_ptr<Communicator> control);
  static std::shared_ptr<CheckedCommunicator> wrap(const std::shared_ptr<Communicator>& inner,
                                                   const std::shared_ptr<Group>& group);
  const CollectiveIdentity& identify(CollectiveKind kind, const CollectiveId& id, const at::Tensor& larger,
                                     at::ScalarType output_dtype, const ReduceOptions& options,
                                     const std::vector<uint64_t>* flags);
  template <typename Issue>
  std::unique_ptr<Work> issue_checked(const CollectiveIdentity& identity, Issue issue);
  template <typename Issue>
  std::unique_ptr<Work> issue_message(const at::Tensor& tensor, int from, int to, const CollectiveId& id, Issue issue);
  int channel_of(int from, int to);
  template <typename Run>
  auto run_checked(const CollectiveIdentity& identity, Run run);

  std::shared_ptr<Group> group_;
  CollectiveIdentity identity_;  // of the collective being issued; a member, to reuse the memory of its name
  std::shared_ptr<CheckedCommunicator> twin_;
};

}  // namespace fsdp::comm
