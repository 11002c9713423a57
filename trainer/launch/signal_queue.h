// Signals that are waited for instead of handled.
#pragma once

#include <csignal>

#include <chrono>
#include <initializer_list>

namespace fsdp::trainer {

// Blocks the given signals in the calling thread for its lifetime, so that they queue up for wait(). Those that the
// process ignores, such as SIGHUP under nohup, are left at that; SIGCHLD is not. A process forked meanwhile inherits
// the blocking and must undo it.
class SignalQueue {
 public:
  explicit SignalQueue(std::initializer_list<int> signals);
  ~SignalQueue();
  SignalQueue(const SignalQueue&) = delete;
  SignalQueue& operator=(const SignalQueue&) = delete;

  // The next signal, or 0 when none came within `timeout`.
  int wait(std::chrono::milliseconds timeout);

 private:
  sigset_t signals_;
  sigset_t before_;
};

}  // namespace fsdp::trainer
