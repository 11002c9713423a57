// The groups that one rank has made from one another: a communicator and its subgroups.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "comm/family_failure.h"
#include "comm/gloo/gloo_transport.h"

namespace fsdp::comm {

// A rank that fails in one group takes no further part in the others. These fail with it, so that ranks that wait in
// them learn the reason at once. Threads: safe.
class GroupFamily {
 public:
  void add(const std::shared_ptr<GlooTransport>& group);
  // Marks all groups as failed and tells their ranks, beginning with `first`.
  void fail(GlooTransport& first, const std::string& reason);
  // The failure that all groups of the family share.
  const std::shared_ptr<FamilyFailure>& failure() const { return failure_; }

 private:
  const std::shared_ptr<FamilyFailure> failure_ = std::make_shared<FamilyFailure>();
  std::mutex mutex_;
  std::vector<std::weak_ptr<GlooTransport>> groups_;
};

}  // namespace fsdp::comm
