// The processes of the ranks that this machine runs.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "comm/meeting/free_port.h"
#include "launch/gate.h"

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
  // Forks the processes, which wait for start() and then call `rank`, whose result is their exit status. Process lists
  // have them as fsdp:rank0, fsdp:rank1, …. In their environment are RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE,
  // MASTER_ADDR, MASTER_PORT (a free port) and OMP_NUM_THREADS (see threads_of_rank). If one cannot be forked, ends the
  // others.
  //
  // A forked rank need not load LibTorch, which takes half a second of computation, and shares the memory that loading
  // has written. But it has neither the threads nor the devices of its parent: this must be called before there are
  // any.
  RankProcesses(const std::function<int()>& rank, int ranks);
  // Kills and reaps the processes that are still alive.
  ~RankProcesses();
  RankProcesses(const RankProcesses&) = delete;
  RankProcesses& operator=(const RankProcesses&) = delete;

  // Lets the processes run. Must be called once.
  void start();
  int alive() const;
  void signal_all(int signal) const;
  // Returns the ranks that ended since the last call, killed ones first. Does not block.
  std::vector<RankDeath> reap();

 private:
  comm::FreePort port_;
  Gate gate_;
  std::vector<pid_t> pids_;  // by rank; 0: ended
};

}  // namespace fsdp::trainer
