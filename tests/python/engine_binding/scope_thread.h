// Turns an engine's scope that takes a body (pin, with_full_params) into a pair of calls, open and close.
#pragma once

#include <functional>
#include <future>
#include <thread>

namespace fsdp::testing {

// The scope runs on a thread of its own, whose body does nothing but wait for close(). Scopes of the engine belong to
// units, not to threads, so the caller's thread works inside it.
class ScopeThread {
 public:
  using Scope = std::function<void(const std::function<void()>& body)>;

  // Returns once the body runs; throws what the scope throws before that.
  explicit ScopeThread(Scope scope);
  // Closes without reporting errors.
  ~ScopeThread();

  // Ends the body, waits for the end of the scope and throws what it threw.
  void close();

 private:
  std::promise<void> close_;
  std::future<void> ended_;
  std::thread thread_;
};

}  // namespace fsdp::testing
