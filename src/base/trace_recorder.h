// Ranges of time, collected while somebody wants them.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "fsdp/trace.h"

namespace fsdp {

// Threads: safe. Costs one look at a flag while off.
class TraceRecorder {
 public:
  // Now, or 0 while nothing is recorded. In nanoseconds, see TraceRange.
  int64_t now() const { return on_.load(std::memory_order_relaxed) ? clock() : 0; }
  // The range from `begin` to now, unless recording was off at either end.
  void record(TraceTrack track, const std::string& name, Pass pass, int64_t begin);

  void start();
  std::vector<TraceRange> stop();

 private:
  static int64_t clock();

  std::atomic<bool> on_{false};
  std::mutex mutex_;
  std::vector<TraceRange> ranges_;
};

}  // namespace fsdp
