// The groups that one rank has made from one another: a communicator and its subgroups.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "comm/failable.h"
#include "comm/family_failure.h"
#include "comm/gloo/gloo_transport.h"
#include "comm/pending_collective.h"

namespace fsdp::comm {

// A rank that fails in one group takes no further part in the others. These fail with it, so that ranks that wait in
// them learn the reason at once. Threads: safe.
class GroupFamily {
 public:
  void add(const std::shared_ptr<GlooTransport>& group);
  // Adds the collectives in flight of a group that is made over one of these.
  void add(const std::shared_ptr<Advancing>& collectives);
  // Does this rank's part in the collectives in flight of all groups.
  //
  // [Note: waiting for a message]
  // A collective in several steps needs each rank's later steps. A rank that waited for a message before it has done
  // them would close a circle: rank A waits for a message of B, B for a step of its peer B', B' for a message of A',
  // and A' for a step of its peer A. So a rank does its later steps in all groups before it waits for a message. Then a
  // rank waits only for acts of other ranks that come earlier in the order of all, since senders never wait.
  void settle();
  // Marks all groups as failed and tells their ranks, beginning with `first`.
  void fail(GlooTransport& first, const std::string& reason);
  // The failure that all groups of the family share.
  const std::shared_ptr<FamilyFailure>& failure() const { return failure_; }

 private:
  const std::shared_ptr<FamilyFailure> failure_ = std::make_shared<FamilyFailure>();
  base::Mutex mutex_;
  std::vector<std::weak_ptr<GlooTransport>> groups_ FSDP_GUARDED_BY(mutex_);
  std::vector<std::weak_ptr<Advancing>> collectives_ FSDP_GUARDED_BY(mutex_);
};

// The same for a group that may have no family.
inline void add_to_family_of(const Communicator& group, const std::shared_ptr<Advancing>& collectives) {
  if (GroupFamily* family = family_of(group)) family->add(collectives);
}
inline void settle_family_of(const Communicator& group) {
  if (GroupFamily* family = family_of(group)) family->settle();
}

}  // namespace fsdp::comm
