// Makes all that the first use of units needs, and knows when that must be done again.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <utility>

#include "base/mutex.h"
#include "engine/gradient_flow.h"
#include "engine/memory_account.h"
#include "engine/unit_tree.h"

namespace fsdp::engine {

// Threads: safe; units and their options change while none is in use.
class Preparation {
 public:
  Preparation(const UnitContext& context, UnitTree& tree, MemoryAccount& memory, GradientFlow& gradients);

  // Compares the ranks' units and options, shares shards and makes groups. Collective when units or options have
  // changed since, otherwise without effect.
  void ensure() FSDP_EXCLUDES(mutex_) {
    if (!done_) prepare();
  }
  // Must be called when units or their options have changed.
  void invalidate() { done_ = false; }
  // Compares the ranks' units and options again. Collective.
  void repeat() FSDP_EXCLUDES(mutex_) {
    invalidate();
    ensure();
  }
  // Takes over changes of requires_grad that were made on the module's parameters or on leaves. Does nothing during
  // backward. If there are any, the next ensure() compares the ranks.
  void follow_requires_grad();
  // Takes over the groups of an engine whose units were absorbed.
  void absorb(Preparation& inner) FSDP_EXCLUDES(mutex_);

 private:
  void prepare() FSDP_EXCLUDES(mutex_);
  void make_park_groups() FSDP_REQUIRES(mutex_);

  const UnitContext& context_;
  UnitTree& tree_;
  MemoryAccount& memory_;
  GradientFlow& gradients_;
  base::Mutex mutex_;
  std::atomic<bool> done_{false};
  // Subgroups of units' shard groups, by shard group and size (ReshardAfterForward).
  std::map<std::pair<const Communicator*, int>, std::shared_ptr<Communicator>> park_groups_ FSDP_GUARDED_BY(mutex_);
};

}  // namespace fsdp::engine
