// SIGTERM as a wish instead of an end.
#pragma once

namespace fsdp::trainer {

// While one of these lasts, SIGTERM does not end the process but is noted; behind the last one it does what it did
// before. Threads: any; all of them see the same.
class StopSignal {
 public:
  StopSignal();
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  // Whether it came since the first of them was made.
  bool received() const;
};

}  // namespace fsdp::trainer
