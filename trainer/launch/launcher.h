// Starts the ranks of one machine as processes and supervises them.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include "launch/rank_processes.h"

namespace fsdp::trainer {

struct LaunchRequest {
  std::function<int()> rank;  // what a rank does; returns its exit status
  int ranks = 1;
  // The time that the other ranks have, after the first failure, to end by themselves (they see and report closed
  // connections) before SIGTERM, and the time from SIGTERM to SIGKILL.
  std::chrono::milliseconds grace_to_end = std::chrono::milliseconds(1000);
  std::chrono::milliseconds grace_to_kill = std::chrono::milliseconds(2000);
  // The time from a signal that was passed on to SIGKILL: ranks may be saving a checkpoint.
  std::chrono::milliseconds grace_to_leave = std::chrono::seconds(30);
};

// The ranks of this machine as processes (see RankProcesses) that die when this process dies.
class Launcher {
 public:
  // Forks the ranks, which wait for run(). Must be called from the main thread of a process that has no other threads
  // and has used no device. Without run(), the ranks end with this object and have done nothing.
  explicit Launcher(LaunchRequest request);

  // Lets the ranks run and waits for all of them. Must be called once.
  //
  // Returns 0 if all ranks did. If a rank failed, names the first one on stderr, ends the others and returns its status
  // (128 + signal if a signal killed it). SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2 are passed on to the ranks, SIGINT as
  // SIGTERM; the status is then 128 + the first of these signals, if no rank failed before. Ranks have grace_to_leave
  // to end before SIGKILL, which a second SIGINT sends at once.
  int run();

 private:
  const LaunchRequest request_;
  RankProcesses processes_;
};

// Returns the name of the first environment variable that makes this process a rank of torchrun, mpirun or srun.
std::optional<std::string> rank_variable_present();

// Throws a ConfigError if there is one, since `option` ("--nproc-per-node") starts ranks.
void check_is_no_rank(const std::string& option);

}  // namespace fsdp::trainer
