#include "base/trace_recorder.h"

#include <chrono>
#include <utility>

namespace fsdp {

int64_t TraceRecorder::clock() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

void TraceRecorder::record(TraceTrack track, const std::string& name, Pass pass, int64_t begin) {
  int64_t end = now();
  if (begin == 0 || end == 0) {
    return;
  }
  std::lock_guard lock(mutex_);
  ranges_.push_back({track, name, pass, begin, end});
}

void TraceRecorder::start() {
  std::lock_guard lock(mutex_);
  ranges_.clear();
  on_ = true;
}

std::vector<TraceRange> TraceRecorder::stop() {
  std::lock_guard lock(mutex_);
  on_ = false;
  return std::exchange(ranges_, {});
}

}  // namespace fsdp
