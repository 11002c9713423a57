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
  trace_.ranges.push_back({track, name, pass, begin, end});
}

void TraceRecorder::sample_memory() {
  if (now() == 0) {
    return;
  }
  std::lock_guard lock(mutex_);
  if (memory_) {
    trace_.memory.push_back({clock(), memory_()});
  }
}

void TraceRecorder::start(Memory memory) {
  std::lock_guard lock(mutex_);
  trace_ = {};
  memory_ = std::move(memory);
  on_ = true;
}

Trace TraceRecorder::stop() {
  std::lock_guard lock(mutex_);
  on_ = false;
  memory_ = {};
  return std::exchange(trace_, {});
}

}  // namespace fsdp
