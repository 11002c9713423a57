#include "report/process_memory.h"

#include <malloc.h>

#include <fstream>
#include <limits>
#include <stdexcept>
#include <string>

namespace fsdp::trainer {

// Not from getrusage: its maximum outlives exec and would count the process that launched this one.
int64_t peak_memory_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    constexpr const char* kPeak = "VmHWM:";
    if (line.rfind(kPeak, 0) == 0) return std::stoll(line.substr(std::string(kPeak).size())) * 1024;
  }
  throw std::runtime_error("/proc/self/status has no line VmHWM");
}

void keep_freed_memory() {
#ifdef __GLIBC__
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
#endif
}

}  // namespace fsdp::trainer
