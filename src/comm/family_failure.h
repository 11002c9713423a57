// What a rank hears in one of its groups ends its other groups, too.
#pragma once

#include <chrono>
#include <mutex>
#include <optional>
#include <string>

namespace fsdp {

// Of the groups that one rank has made from one another: that another rank has failed in one of them, and why. Ranks
// that wait for each other in a group without that rank would not hear of it otherwise. Threads: safe.
class FamilyFailure {
 public:
  // The first reason stays.
  void note(const std::string& reason) {
    std::lock_guard lock(mutex_);
    if (reason_) return;
    reason_ = reason;
    noted_ = Clock::now();
  }
  // A moment after it was noted, in which what was issued before may end.
  std::optional<std::string> due() const {
    std::lock_guard lock(mutex_);
    return reason_ && Clock::now() >= noted_ + kMoment ? reason_ : std::nullopt;
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr auto kMoment = std::chrono::milliseconds(500);

  mutable std::mutex mutex_;
  std::optional<std::string> reason_;
  Clock::time_point noted_{};
};

}  // namespace fsdp
