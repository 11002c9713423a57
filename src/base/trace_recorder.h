// Records time ranges and memory samples while a trace is requested.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "fsdp/trace.h"

namespace fsdp::base {

// Decides when to take samples that cost time: measuring the memory of a large model takes as long as computing one of
// its units. All samples are taken while they are cheap, and costly ones until they have cost 50 milliseconds together.
// After that, costly samples take at most a tenth of the time. Times are in nanoseconds.
class SamplePace {
 public:
  bool allows(int64_t now) const { return now >= next_; }
  void note(int64_t began, int64_t ended);

 private:
  static constexpr int64_t kFree = 50'000'000;
  static constexpr int64_t kCheap = 50'000;
  static constexpr int64_t kShare = 10;
  std::array<int64_t, 4> recent_{};  // costs of the last samples; the least counts, as others were interrupted
  size_t count_ = 0;
  int64_t spent_ = 0;
  int64_t next_ = 0;
};

// Thread-safe. While recording is off, a call costs one check of a flag.
class TraceRecorder {
 public:
  // Returns the current time in nanoseconds (see TraceRange), or 0 while nothing is recorded.
  int64_t now() const { return on_.load(std::memory_order_relaxed) ? clock() : 0; }
  // Records the range from `begin` to now, unless recording was off at either end. `stage`: see TraceRange.
  void record(TraceTrack track, const std::string& name, Pass pass, int64_t begin, int stage = -1);

  // Call after memory use has changed: takes a sample if the pace of samples allows it.
  void sample_memory();

  // `memory` returns the bytes of each category. It is called in the threads that call sample_memory(), one at a time,
  // and must not call this object.
  using Memory = std::function<std::vector<std::pair<std::string, int64_t>>()>;
  void start(Memory memory = {});
  Trace stop();

 private:
  static int64_t clock();

  std::atomic<bool> on_{false};
  Mutex mutex_;
  Trace trace_ FSDP_GUARDED_BY(mutex_);
  Memory memory_ FSDP_GUARDED_BY(mutex_);
  SamplePace pace_ FSDP_GUARDED_BY(mutex_);
};

}  // namespace fsdp::base
