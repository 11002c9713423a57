// A failure that a rank learns of in one of its groups ends its other groups, too.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "base/mutex.h"

namespace fsdp::comm {

// Records that another rank has failed in one of the groups that this rank has made from one another, and the reason.
// Ranks that wait for each other in a group without the failed rank would not learn of it otherwise. Threads: safe.
class FamilyFailure {
 public:
  // Records a failure. Keeps the first reason.
  void note(const std::string& reason) {
    base::MutexLock lock(mutex_);
    if (reason_) return;
    reason_ = reason;
    noted_ = Clock::now();
  }
  // Returns the reason when kMoment has passed since it was noted, so that collectives issued before may end first.
  std::optional<std::string> due() const {
    base::MutexLock lock(mutex_);
    return reason_ && Clock::now() >= noted_ + kMoment ? reason_ : std::nullopt;
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr auto kMoment = std::chrono::milliseconds(500);

  mutable base::Mutex mutex_;
  std::optional<std::string> reason_ FSDP_GUARDED_BY(mutex_);
  Clock::time_point noted_ FSDP_GUARDED_BY(mutex_){};
};

}  // namespace fsdp::comm
