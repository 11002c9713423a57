#include "launch/signal_queue.h"

#include <pthread.h>

namespace fsdp::trainer {

SignalQueue::SignalQueue(std::initializer_list<int> signals) {
  sigemptyset(&signals_);
  for (int signal : signals) {
    struct sigaction present{};
    sigaction(signal, nullptr, &present);
    if (present.sa_handler != SIG_IGN || signal == SIGCHLD) sigaddset(&signals_, signal);
  }
  pthread_sigmask(SIG_BLOCK, &signals_, &before_);
}

SignalQueue::~SignalQueue() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

int SignalQueue::wait(std::chrono::milliseconds timeout) {
  const timespec limit{.tv_sec = static_cast<time_t>(timeout.count() / 1000),
                       .tv_nsec = static_cast<long>(timeout.count() % 1000) * 1'000'000};
  const int signal = sigtimedwait(&signals_, nullptr, &limit);
  return signal > 0 ? signal : 0;
}

}  // namespace fsdp::trainer
