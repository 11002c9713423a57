#include "saving/stop_signal.h"

#include <array>
#include <csignal>
#include <cstring>
#include <mutex>

namespace fsdp::trainer {

namespace {

constexpr std::array kSignals = {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2};

volatile std::sig_atomic_t received_signal = 0;  // 0: none
volatile std::sig_atomic_t interrupts = 0;
std::mutex mutex;  // guards `users` and `before`
int users = 0;
std::array<struct sigaction, kSignals.size()> before{};

void note(int signal) {
  if (signal == SIGINT) interrupts = interrupts + 1;
  if (interrupts > 1) {
    std::signal(SIGINT, SIG_DFL);
    std::raise(SIGINT);  // blocked until this handler returns
  }
  received_signal = signal;
}

}  // namespace

StopSignal::StopSignal() {
  const std::lock_guard lock(mutex);
  if (users++ > 0) return;
  received_signal = 0;
  interrupts = 0;
  struct sigaction action{};
  action.sa_handler = note;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  for (size_t i = 0; i < kSignals.size(); ++i) {
    sigaction(kSignals[i], nullptr, &before[i]);
    if (before[i].sa_handler != SIG_IGN) sigaction(kSignals[i], &action, nullptr);
  }
}

StopSignal::~StopSignal() {
  const std::lock_guard lock(mutex);
  if (--users > 0) return;
  for (size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &before[i], nullptr);
}

std::string StopSignal::received() const {
  const int signal = received_signal;
  return signal == 0 ? std::string() : std::string("SIG") + sigabbrev_np(signal);
}

}  // namespace fsdp::trainer
