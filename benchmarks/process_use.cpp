#include "process_use.h"

#include <c10/util/Exception.h>
#include <pthread.h>
#include <sys/resource.h>
#include <time.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>

namespace fsdp::benchmarks {
namespace {

constexpr size_t kStackBytes = size_t{1} << 20;

// Returns the seconds that the calling thread has run or was ready to run.
double busy_seconds() {
  std::ifstream file("/proc/thread-self/schedstat");
  double run = 0, ready = 0;
  TORCH_CHECK(file >> run >> ready, "/proc/thread-self/schedstat cannot be read: this kernel does not count");
  return 1e-9 * (run + ready);
}

int64_t status_bytes(const std::string& key) {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    int64_t kib = 0;
    if (word == key && status >> kib) return kib * 1024;
  }
  TORCH_CHECK(false, "/proc/self/status has no line ", key);
}

}  // namespace

PartClock::PartClock() : start_(std::chrono::steady_clock::now()), busy_(busy_seconds()) {}

PartTime PartClock::elapsed() const {
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  return {seconds, std::max(0.0, seconds - (busy_seconds() - busy_))};
}

double process_cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

uint64_t network_bytes_sent() {
  std::ifstream file("/proc/self/net/dev");
  uint64_t sum = 0;
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    std::istringstream columns(line.substr(colon + 1));
    uint64_t value = 0;
    for (int column = 0; column < 9; ++column) columns >> value;  // eight columns of received data, then bytes sent
    sum += value;
  }
  return sum;
}

bool reset_peak_resident() {
  std::ofstream file("/proc/self/clear_refs");
  return static_cast<bool>(file << 5 << std::flush);
}

int64_t peak_resident_bytes() { return status_bytes("VmHWM:"); }

int64_t limit_memory(int64_t more) {
  pthread_attr_t small_stack;
  TORCH_CHECK(pthread_attr_init(&small_stack) == 0 && pthread_attr_setstacksize(&small_stack, kStackBytes) == 0 &&
                  pthread_setattr_default_np(&small_stack) == 0,
              "the size of threads' stacks could not be set");
  const int64_t base = status_bytes("VmData:");
  const rlimit limit{static_cast<rlim_t>(base + more), RLIM_INFINITY};
  TORCH_CHECK(::setrlimit(RLIMIT_DATA, &limit) == 0, "the memory of the process could not be limited");
  return base;
}

}  // namespace fsdp::benchmarks
