#include "comm/group_family.h"

#include <utility>

namespace fsdp::comm {

void GroupFamily::add(const std::shared_ptr<GlooTransport>& group) {
  base::MutexLock lock(mutex_);
  std::erase_if(groups_, [](const auto& known) { return known.expired(); });
  groups_.push_back(group);
}

void GroupFamily::add(const std::shared_ptr<Advancing>& collectives) {
  base::MutexLock lock(mutex_);
  std::erase_if(collectives_, [](const auto& known) { return known.expired(); });
  collectives_.push_back(collectives);
}

// A step may fail, which marks the groups, so the list is copied.
void GroupFamily::settle() {
  std::vector<std::shared_ptr<Advancing>> all;
  {
    base::MutexLock lock(mutex_);
    for (const std::weak_ptr<Advancing>& known : collectives_) {
      if (auto collectives = known.lock()) all.push_back(std::move(collectives));
    }
  }
  for (const auto& collectives : all) collectives->settle();
}

void GroupFamily::fail(GlooTransport& first, const std::string& reason) {
  first.fail(reason);
  base::MutexLock lock(mutex_);
  for (const std::weak_ptr<GlooTransport>& known : groups_) {
    if (const auto group = known.lock()) group->fail(reason);
  }
}

}  // namespace fsdp::comm
