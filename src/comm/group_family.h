// The groups that one rank has made from one another: a communicator and its subgroups.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "comm/family_failure.h"
#include "comm/gloo_transport.h"

namespace fsdp {

// A rank that fails in one group takes no part in the others any more: these fail with it, so that ranks which wait
// there learn the reason at once. Threads: safe.
class GroupFamily {
 public:
  void add(const std::shared_ptr<GlooTransport>& group);
  // Marks all groups as failed and tells their ranks; `first` comes first.
  void fail(GlooTransport& first, const std::string& reason);
  // Shared by all of them.
  const std::shared_ptr<FamilyFailure>& failure() const { return failure_; }

 private:
  const std::shared_ptr<FamilyFailure> failure_ = std::make_shared<FamilyFailure>();
  std::mutex mutex_;
  std::vector<std::weak_ptr<GlooTransport>> groups_;
};

}  // namespace fsdp
