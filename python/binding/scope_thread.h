// Turns an engine's scope that takes a body (pin, with_full_params) into a pair of calls, open and close.
#pragma once

#include <functional>
#include <future>
#include <thread>

namespace fsdp::python {

// Runs the scope on a separate thread, where its body only waits for close(). Scopes of the engine belong to units, not
// to threads, so the caller's thread works inside the scope.
class ScopeThread {
 public:
  using Scope = std::function<void(const std::function<void()>& body)>;

  // Returns once the body runs. Throws the scope's error if it fails before that.
  explicit ScopeThread(Scope scope);
  // Closes the scope if it is open, without reporting errors.
  ~ScopeThread();

  // Ends the body, waits for the end of the scope, and throws the scope's error if there was one.
  void close();

 private:
  std::promise<void> close_;
  std::future<void> ended_;
  std::thread thread_;
};

}  // namespace fsdp::python
