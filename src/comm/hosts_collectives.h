// The collectives in flight over several hosts, in terms of those within a host and among hosts.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <vector>

#include "comm/collective_header.h"
#include "comm/pending_collective.h"
#include "comm/rank_hosts.h"
#include "fsdp/communicator.h"

namespace fsdp {

// [Note: steps over hosts]
// Ranks lie host by host, as many on each: rank = host * ranks_per_host + place. `local` is the group of the ranks of
// this host, `across` that of the ranks with this place on every host. A collective is a step in one of them and, when
// that is over, steps in the other. In each group all ranks must issue the same steps in the same order. But what
// follows a step is issued when a rank comes to it (PendingCollective::advance), which is in the order of the
// collectives, yet earlier or later in between the steps that begin other collectives. So there are two groups of each
// kind: for steps that begin a collective, and for those that follow. A group and its twin share all of them.
//
// Each collective begins with a step in `local` and with one in `across`, be it an empty one. Steps carry the whole
// collective's identity in their name. A rank compares with its host and its place before its other steps give anything
// to others; so all that a rank gets has been compared with all ranks, and two ranks that issue different collectives
// find one another out, or a third one finds out both.
//
// Others wait for what a rank's part in a collective is. So it does its part in all that it has issued before, in a
// group and in its twin, before it waits in either. The order of issue over both must be the same on all ranks, which
// could wait for one another for ever otherwise; another order is found out as other collectives are. One thread at a
// time uses them.
struct HostsContext {
  std::shared_ptr<Communicator> world;                    // over Gloo; a twin's is the twin of this
  std::shared_ptr<Communicator> local, across;            // for steps that begin a collective
  std::shared_ptr<Communicator> local_next, across_next;  // twins of these, for steps that follow
  HostGrid grid;
  std::shared_ptr<uint64_t> next_sequence;  // of a group and its twin

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
  void drop() final;

 protected:
  using Works = std::vector<std::unique_ptr<Work>>;
  // After the steps that begin the collective: issues those that follow.
  virtual void go_on() = 0;
  // Waits for what go_on() has issued, and puts the result in place.
  virtual void complete() { wait_for(next_); }
  virtual void forget_output() {}

  // An empty step, which only compares.
  void begin_in(Communicator& group);
  static void wait_for(Works& works);
  // For the steps; what the caller gave gets them at the end.
  std::vector<uint64_t>* flags() { return flags_ ? &*flags_ : nullptr; }

  const std::shared_ptr<HostsContext> context_;
  const CollectiveId id_;
  const CollectiveId step_;  // of steps
  Works begun_;
  Works next_;

 private:
  const uint64_t sequence_;
  std::vector<uint64_t>* caller_flags_;
  std::optional<std::vector<uint64_t>> flags_;
  bool advanced_ = false;
  std::exception_ptr failure_;  // of advance()
};

// How many hosts there may be for a collective to take a step of its own for each; steps in memory are limited in
// number (ShmBoard::kDepth).
constexpr int kMostSteps = 4;

// Among hosts, and then what came to this host among its ranks.
class HostsAllGather final : public HostsCollective {
 public:
  HostsAllGather(std::shared_ptr<HostsContext> context, const CollectiveIdentity& whole, at::Tensor output,
                 const at::Tensor& input);

 private:
  void go_on() override;
  void complete() override;
  void forget_output() override { output_.reset(); }

  at::Tensor output_;
  at::Tensor pieces_;    // of this place, from each host
  at::Tensor by_place_;  // what the host has gathered, if not straight into the output
};

// The output is a buffer that all ranks of this host read: each writes what came to it from the other hosts.
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

// Each host sums what its ranks contribute; then hosts sum their sums.
class HostsReduceScatter final : public HostsCollective {
 public:
  HostsReduceScatter(std::shared_ptr<HostsContext> context, const CollectiveIdentity& whole, at::Tensor output,
                     const at::Tensor& input, const ReduceOptions& options, std::vector<uint64_t>* flags);

 private:
  void go_on() override;
  void forget_output() override { options_.summary = nullptr; }

  at::Tensor output_;
  at::Tensor sums_;  // of this host, for this place on each host
  ReduceOptions options_;
};

// As a reduce-scatter in the host, an all-reduce of each rank's part among hosts, and an all-gather in the host.
class HostsAllReduce final : public HostsCollective {
 public:
  HostsAllReduce(std::shared_ptr<HostsContext> context, const CollectiveIdentity& whole, at::Tensor output,
                 const at::Tensor& tensor, const ReduceOptions& options, std::vector<uint64_t>* flags);

 private:
  void go_on() override;
  void complete() override;
  void forget_output() override {
    output_.reset();
    options_.summary = nullptr;
  }

  at::Tensor output_;
  at::Tensor part_;  // of this host's sums
  at::Tensor all_;   // the parts of all places
  const at::ScalarType dtype_;
  const int64_t numel_;
  ReduceOptions options_;
};

// Among the ranks with the root's place, and from them to those of their hosts.
class HostsBroadcast final : public HostsCollective {
 public:
  HostsBroadcast(std::shared_ptr<HostsContext> context, const CollectiveIdentity& whole, const at::Tensor& tensor,
                 int root);

 private:
  void go_on() override;

  at::Tensor tensor_;
  const int root_place_;
};

// As over Gloo: what ranks send to each other differs, so nothing is gained by passing it on.
class HostsAllToAll final : public HostsCollective {
 public:
  HostsAllToAll(std::shared_ptr<HostsContext> context, const CollectiveIdentity& whole, const at::Tensor& output,
                const at::Tensor& input, const SplitCounts& counts);

 private:
  void go_on() override {}
};

// Only compares.
class HostsAgreement final : public HostsCollective {
 public:
  HostsAgreement(std::shared_ptr<HostsContext> context, const CollectiveIdentity& whole);

 private:
  void go_on() override {}
};

}  // namespace fsdp
