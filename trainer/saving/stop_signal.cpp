#include "saving/stop_signal.h"

#include <csignal>
#include <mutex>

namespace fsdp::trainer {

namespace {

volatile std::sig_atomic_t received_flag = 0;
std::mutex mutex;  // of the rest
int users = 0;
struct sigaction before {};

void note(int) { received_flag = 1; }

}  // namespace

StopSignal::StopSignal() {
  const std::lock_guard lock(mutex);
  if (users++ > 0) return;
  received_flag = 0;
  struct sigaction action {};
  action.sa_handler = note;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigaction(SIGTERM, &action, &before);
}

StopSignal::~StopSignal() {
  const std::lock_guard lock(mutex);
  if (--users == 0) sigaction(SIGTERM, &before, nullptr);
}

bool StopSignal::received() const { return received_flag != 0; }

}  // namespace fsdp::trainer
