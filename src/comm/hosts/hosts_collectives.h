// Collectives in flight over several hosts, built from collectives within a host and among hosts.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <vector>

#include "comm/collective_header.h"
#include "comm/hosts/rank_hosts.h"
#include "comm/pending_collective.h"
#include "fsdp/communicator.h"

namespace fsdp::comm {

// [Note: steps over hosts]
// Ranks are numbered host by host, with the same number on each: rank = host * ranks_per_host + place. `local` is the
// group of the ranks of this host, `across` the group of the ranks with this place on every host. A collective is a
// step in one of these groups, followed by steps in the other. In each group all ranks must issue the same steps in the
// same order. But a rank issues the steps that follow when it reaches them (PendingCollective::advance): in the order
// of the collectives, yet earlier or later relative to the steps that begin other collectives. So there are two groups
// of each kind: one for steps that begin a collective, one for steps that follow. A group and its twin share all of
// them.
//
// Each collective begins with a step in `local` and one in `across`; either may be empty. The names of steps contain
// the identity of the whole collective. A rank compares with its host and with its place before its other steps pass
// anything to others. So all data that a rank receives has been compared with all ranks, and if two ranks issue
// different collectives, they detect each other, or a third rank detects both.
//
// Other ranks wait for this rank's part in a collective. So, before it waits in a group or in its twin, a rank does its
// part in everything that it has issued before in both. The order of issue over both must be the same on all ranks,
// which could otherwise wait for each other forever; a different order is detected like different collectives. One
// thread at a time uses a group and its twin.
struct HostsContext {
  std::shared_ptr<Communicator> world;                    // over Gloo; the context of a twin has its twin
  std::shared_ptr<Communicator> local, across;            // for steps that begin a collective
  std::shared_ptr<Communicator> local_next, across_next;  // their twins, for steps that follow
  HostGrid grid;
  std::shared_ptr<uint64_t> next_sequence;  // shared by a group and its twin

  int host() const { return across->rank(); }
  int place() const { return local->rank(); }
};

class HostsCollective : public PendingCollective {
 public:
  // `flags` may be null.
  HostsCollective(std::shared_ptr<HostsContext> context, const CollectiveIdentity& whole, std::vector<uint64_t>* flags);
  uint64_t sequence() const final { return sequence_; }
  void advance() final;
  void finish() final;
  void discard_result() final;

 protected:
  using Works = std::vector<std::unique_ptr<Work>>;
  // Issues the steps that follow, after those that begin the collective.
  virtual void go_on() = 0;
  // Waits for the steps that go_on() issued, and stores the result in the output.
  virtual void complete() { wait_for(next_); }
  virtual void clear_output() {}

  // Begins an empty step, which only compares.
  void begin_in(Communicator& group);
  static void wait_for(Works& works);
  // The flags that the steps use. They are copied to the caller's flags at the end.
  std::vector<uint64_t>* flags() { return flags_ ? &*flags_ : nullptr; }

  const std::shared_ptr<HostsContext> context_;
  const CollectiveId id_;
  const CollectiveId step_;  // the id of the steps
  Works begun_;
  Works next_;

 private:
  const uint64_t sequence_;
  std::vector<uint64_t>* caller_flags_;
  std::optional<std::vector<uint64_t>> flags_;
  bool advanced_ = false;
  std::exception_ptr failure_;  // thrown by advance()
};

// The largest number of hosts for which a collective takes a separate step for each host; the number of steps in shared
// memory is limited (ShmBoard::kDepth).
constexpr int kMostSteps = 4;

// Gathers among hosts, then gathers among the ranks of this host what each received.
class HostsAllGather final : public HostsCollective {
 public:
  HostsAllGather(std::shared_ptr<HostsContext> context, const CollectiveIdentity& whole, at::Tensor output,
                 const at::Tensor& input);

 private:
  void go_on() override;
  void complete() override;
  void clear_output() override { output_.reset(); }

  at::Tensor output_;
  at::Tensor pieces_;    // the shards of this place, from each host
  at::Tensor by_place_;  // what the host has gathered, if not directly into the output
};

// The output is a buffer that all ranks of this host read. Each rank writes to it what it received from the other
// hosts.
class HostsSharedGather final : public HostsCollective {
 public:
  HostsSharedGather(std::shared_ptr<HostsContext> context, const CollectiveIdentity& whole, at::Tensor buffer,
                    const at::Tensor& input);

 private:
  void go_on() override;

  at::Tensor buffer_;
  at::Tensor input_;
  at::Tensor pieces_;
};

// Each host sums the contributions of its ranks; then the hosts sum their sums.
class HostsReduceScatter final : public HostsCollective {
 public:
  HostsReduceScatter(std::shared_ptr<HostsContext> context, const CollectiveIdentity& whole, at::Tensor output,
                     const at::Tensor& input, const ReduceOptions& options, std::vector<uint64_t>* flags);

 private:
  void go_on() override;
  void clear_output() override { options_.summary = nullptr; }

  at::Tensor output_;
  at::Tensor sums_;  // sums of this host, for this place on each host
  ReduceOptions options_;
};

// A reduce-scatter within the host, an all-reduce of each rank's part among hosts, and an all-gather within the host.
class HostsAllReduce final : public HostsCollective {
 public:
  HostsAllReduce(std::shared_ptr<HostsContext> context, const CollectiveIdentity& whole, at::Tensor output,
                 const at::Tensor& tensor, const ReduceOptions& options, std::vector<uint64_t>* flags);

 private:
  void go_on() override;
  void complete() override;
  void clear_output() override {
    output_.reset();
    options_.summary = nullptr;
  }

  at::Tensor output_;
  at::Tensor part_;  // this place's part of this host's sums
  at::Tensor all_;   // the parts of all places
  const at::ScalarType dtype_;
  const int64_t numel_;
  ReduceOptions options_;
};

// Broadcasts among the ranks with the root's place, then from each of them to the ranks of its host.
class HostsBroadcast final : public HostsCollective {
 public:
  HostsBroadcast(std::shared_ptr<HostsContext> context, const CollectiveIdentity& whole, const at::Tensor& tensor,
                 int root);

 private:
  void go_on() override;

  at::Tensor tensor_;
  const int root_place_;
};

// Runs over Gloo: ranks send different data to each other, so forwarding it within a host would save nothing.
class HostsAllToAll final : public HostsCollective {
 public:
  HostsAllToAll(std::shared_ptr<HostsContext> context, const CollectiveIdentity& whole, const at::Tensor& output,
                const at::Tensor& input, const SplitCounts& counts);

 private:
  void go_on() override {}
};

// Compares identities only.
class HostsAgreement final : public HostsCollective {
 public:
  HostsAgreement(std::shared_ptr<HostsContext> context, const CollectiveIdentity& whole);

 private:
  void go_on() override {}
};

}  // namespace fsdp::comm
