#include "report/process_memory.h"

#include <malloc.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

#include "fsdp/errors.h"

namespace fsdp::trainer {

// Does not use getrusage: its maximum survives exec and would include the process that launched this one.
ProcessMemory process_memory() {
  ProcessMemory memory;
  std::ifstream status("/proc/self/status");
  bool has_own = false;
  for (std::string line; std::getline(status, line);) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    const std::string name = line.substr(0, colon);
    const auto bytes = [&] { return std::stoll(line.substr(colon + 1)) * 1024; };
    if (name == "RssAnon" || name == "RssShmem") memory.own += bytes();
    if (name == "RssFile") memory.mapped = bytes();
    if (name == "VmHWM") memory.peak = bytes();
    has_own |= name == "RssAnon";
  }
  if (!has_own) throw FileError("/proc/self/status has no line RssAnon");
  return memory;
}

void PeakMemory::restart() {
  look();
  mapped_since_ = 0;
  constexpr const char* kResetPeak = "5";
  peak_is_of_now_ = static_cast<bool>(std::ofstream("/proc/self/clear_refs") << kResetPeak << std::flush);
}

ProcessMemory PeakMemory::look() {
  const ProcessMemory now = process_memory();
  mapped_since_ = std::max(mapped_since_, now.mapped);
  most_.own = std::max(most_.own, now.own);
  most_.mapped = std::max(most_.mapped, now.mapped);
  if (peak_is_of_now_) most_.own = std::max(most_.own, now.peak - mapped_since_);
  most_.peak = std::max(most_.peak, now.peak);
  return most_;
}

void keep_freed_memory() {
#ifdef __GLIBC__
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
#endif
}

}  // namespace fsdp::trainer
