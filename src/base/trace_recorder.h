// Ranges of time and states of memory, collected while somebody wants them.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/trace.h"

namespace fsdp {

// When samples are taken that cost time: reading what memory a large model holds takes as long as computing with one of
// its units. The first thousand are taken, and all others while they are cheap, else as many as take a tenth of the
// time. In nanoseconds.
class SamplePace {
 public:
  bool allows(int64_t now) const { return now >= next_; }
  void note(int64_t began, int64_t ended);

 private:
  static constexpr size_t kFirst = 1000;
  static constexpr int64_t kCheap = 50'000;
  static constexpr int64_t kShare = 10;
  std::array<int64_t, 4> recent_{};  // what the last samples cost: the least, as others were interrupted
  size_t count_ = 0;
  int64_t next_ = 0;
};

// Threads: safe. Costs one look at a flag while off.
class TraceRecorder {
 public:
  // Now, or 0 while nothing is recorded. In nanoseconds, see TraceRange.
  int64_t now() const { return on_.load(std::memory_order_relaxed) ? clock() : 0; }
  // The range from `begin` to now, unless recording was off at either end.
  void record(TraceTrack track, const std::string& name, Pass pass, int64_t begin);

  // Memory has changed: asks for what it is now, if the pace of samples allows it.
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
  SamplePace pace_;
};

}  // namespace fsdp
