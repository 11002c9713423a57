#include "base/trace_recorder.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace fsdp::base {

void SamplePace::note(int64_t began, int64_t ended) {
  recent_[count_++ % recent_.size()] = ended - began;
  const int64_t cost = *std::min_element(recent_.begin(), recent_.end());
  spent_ += cost;
  next_ = spent_ >= kFree && cost > kCheap ? ended + (kShare - 1) * cost : 0;
}

int64_t TraceRecorder::clock() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

void TraceRecorder::record(TraceTrack track, const std::string& name, Pass pass, int64_t begin, int stage) {
  int64_t end = now();
  if (begin == 0 || end == 0) return;
  MutexLock lock(mutex_);
  trace_.ranges.push_back({track, name, pass, begin, end, stage});
}

void TraceRecorder::sample_memory() {
  if (now() == 0) return;
  MutexLock lock(mutex_);
  const int64_t began = clock();
  if (memory_ && pace_.allows(began)) {
    trace_.memory.push_back({began, memory_()});
    pace_.note(began, clock());
  }
}

void TraceRecorder::start(Memory memory) {
  MutexLock lock(mutex_);
  trace_ = {};
  memory_ = std::move(memory);
  pace_ = {};
  on_ = true;
}

Trace TraceRecorder::stop() {
  MutexLock lock(mutex_);
  on_ = false;
  memory_ = {};
  return std::exchange(trace_, {});
}

}  // namespace fsdp::base
