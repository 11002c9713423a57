// The processes of the ranks that this machine runs.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "comm/free_port.h"

namespace fsdp::trainer {

// How a rank ended.
struct RankDeath {
  int rank = 0;
  int wait_status = 0;  // of waitpid

  // The exit status, or 128 + the signal that killed it.
  int status() const;
  // "exited with status 1", "was killed by signal 9 (Killed)".
  std::string describe() const;
};

class RankProcesses {
 public:
  // Starts them; what was started ends again when one cannot be.
  RankProcesses(const std::string& program, const std::vector<std::string>& arguments, int ranks);
  // Kills and reaps those that are still alive.
  ~RankProcesses();
  RankProcesses(const RankProcesses&) = delete;
  RankProcesses& operator=(const RankProcesses&) = delete;

  int alive() const;
  void signal_all(int signal) const;
  // Those that ended since the last call, killed ones first. Does not block.
  std::vector<RankDeath> reap();

 private:
  FreePort port_;
  std::vector<pid_t> pids_;  // by rank; 0: ended
};

}  // namespace fsdp::trainer
