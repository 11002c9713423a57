// Signals as requests to stop instead of immediate ends.
#pragma once

#include <string>

namespace fsdp::trainer {

// While at least one object exists, SIGTERM, SIGINT, SIGHUP, SIGUSR1 and SIGUSR2 do not end the process but are noted;
// after the last object, they have their earlier effect again. A second SIGINT ends the process at once. A signal that
// the process ignores, such as SIGHUP under nohup, stays ignored. Threads: any; all objects see the same signals.
class StopSignal {
 public:
  StopSignal();
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  // Returns the name of the last signal received since the first of the existing objects was created, such as
  // "SIGTERM", or an empty string if none was received.
  std::string received() const;
};

}  // namespace fsdp::trainer
