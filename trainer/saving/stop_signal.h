// Signals as a wish instead of an end.
#pragma once

#include <string>

namespace fsdp::trainer {

// While one of these lasts, SIGTERM, SIGINT, SIGHUP, SIGUSR1 and SIGUSR2 do not end the process but are noted; after
// the last one they do what they did before. A second SIGINT ends the process at once. A signal that the process
// ignores, such as SIGHUP under nohup, is ignored on. Threads: any; all of them see the same.
class StopSignal {
 public:
  StopSignal();
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  // The name of the last one that came since the first of them was made, such as "SIGTERM"; empty: none came.
  std::string received() const;
};

}  // namespace fsdp::trainer
