// Ranges of time and states of memory, collected while somebody wants them.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <utility>
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

  // Memory has changed: asks for what it is now.
  void sample_memory();

  // `memory`: tells the bytes of each category. It is called in the threads that call sample_memory(), one at a time,
  // and must not come back here.
  using Memory = std::function<std::vector<std::pair<std::string, int64_t>>()>;
  void start(Memory memory = {});
  Trace stop();

 private:
  static int64_t clock();

  std::atomic<bool> on_{false};
  std::mutex mutex_;
  Trace trace_;
  Memory memory_;
};

}  // namespace fsdp
