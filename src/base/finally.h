// Runs an action at the end of a scope.
#pragma once

#include <functional>
#include <utility>

namespace fsdp::base {

class Finally {
 public:
  explicit Finally(std::function<void()> action) : action_(std::move(action)) {}
  ~Finally() { action_(); }
  Finally(const Finally&) = delete;
  Finally& operator=(const Finally&) = delete;

 private:
  std::function<void()> action_;
};

}  // namespace fsdp::base
