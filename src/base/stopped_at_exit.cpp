#include "base/stopped_at_exit.h"

#include <c10/util/Exception.h>
#include <unistd.h>

#include <cstdlib>
#include <mutex>
#include <set>
#include <utility>

namespace fsdp::base {

struct StoppedAtExit::All {
  std::mutex mutex;
  std::set<StoppedAtExit*> alive;
};

StoppedAtExit::All& StoppedAtExit::all() {
  static All* instance = new All;  // never destroyed
  return *instance;
}

void StoppedAtExit::stop_all() {
  for (StoppedAtExit* one : std::exchange(all().alive, {})) {
    if (one->is_of_this_process()) one->stop_();
  }
}

StoppedAtExit::StoppedAtExit(std::function<void()> stop) : stop_(std::move(stop)), process_(getpid()) {
  static const int registered = std::atexit(&stop_all);
  TORCH_CHECK(registered == 0, "no more handlers can be registered for the end of this process");
  std::lock_guard<std::mutex> lock(all().mutex);
  all().alive.insert(this);
}

StoppedAtExit::~StoppedAtExit() {
  std::lock_guard<std::mutex> lock(all().mutex);
  all().alive.erase(this);
}

bool StoppedAtExit::is_of_this_process() const { return getpid() == process_; }

}  // namespace fsdp::base
