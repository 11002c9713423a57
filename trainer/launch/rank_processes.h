// The processes of the ranks that this machine runs.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "comm/meeting/free_port.h"

namespace fsdp::trainer {

// The end of a rank.
struct RankDeath {
  int rank = 0;
  int wait_status = 0;  // from waitpid

  // Returns the exit status, or 128 + the signal that killed the rank.
  int status() const;
  // Returns "exited with status 1" or "was killed by signal 9 (Killed)".
  std::string describe() const;
};

// Returns the number of threads for operators that each of `ranks` ranks of this machine is given: its share of the
// cores. A value of OMP_NUM_THREADS takes precedence.
int threads_of_rank(int ranks);

class RankProcesses {
 public:
  // Starts the processes. If one cannot be started, ends the ones already started.
  RankProcesses(const std::string& program, const std::vector<std::string>& arguments, int ranks);
  // Kills and reaps the processes that are still alive.
  ~RankProcesses();
  RankProcesses(const RankProcesses&) = delete;
  RankProcesses& operator=(const RankProcesses&) = delete;

  int alive() const;
  void signal_all(int signal) const;
  // Returns the ranks that ended since the last call, killed ones first. Does not block.
  std::vector<RankDeath> reap();

 private:
  comm::FreePort port_;
  std::vector<pid_t> pids_;  // by rank; 0: ended
};

}  // namespace fsdp::trainer
