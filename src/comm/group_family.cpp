#include "comm/group_family.h"

namespace fsdp::comm {

void GroupFamily::add(const std::shared_ptr<GlooTransport>& group) {
  std::lock_guard lock(mutex_);
  std::erase_if(groups_, [](const auto& known) { return known.expired(); });
  groups_.push_back(group);
}

void GroupFamily::fail(GlooTransport& first, const std::string& reason) {
  first.fail(reason);
  std::lock_guard lock(mutex_);
  for (const std::weak_ptr<GlooTransport>& known : groups_) {
    if (const auto group = known.lock()) group->fail(reason);
  }
}

}  // namespace fsdp::comm
