// A queue of signals to wait for instead of handling them.
#pragma once

#include <csignal>

#include <chrono>
#include <initializer_list>

namespace fsdp::trainer {

// Blocks the given signals in the calling thread during its lifetime, so that they queue up for wait(). Signals that
// the process ignores, such as SIGHUP under nohup, stay ignored, except SIGCHLD. A process forked meanwhile would
// inherit the blocked signals.
class SignalQueue {
 public:
  explicit SignalQueue(std::initializer_list<int> signals);
  ~SignalQueue();
  SignalQueue(const SignalQueue&) = delete;
  SignalQueue& operator=(const SignalQueue&) = delete;

  // Returns the next signal, or 0 if none came within `timeout`.
  int wait(std::chrono::milliseconds timeout);

 private:
  sigset_t signals_;
  sigset_t before_;
};

}  // namespace fsdp::trainer
