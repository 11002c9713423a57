// Starts the ranks of one machine as processes and supervises them.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

namespace fsdp::trainer {

struct LaunchRequest {
  std::string program;                 // path of the executable
  std::vector<std::string> arguments;  // after the program's name
  int ranks = 1;
  // The time that the other ranks have, after the first failure, to end by themselves (they see and report closed
  // connections) before SIGTERM, and the time from SIGTERM to SIGKILL.
  std::chrono::milliseconds grace_to_end = std::chrono::milliseconds(1000);
  std::chrono::milliseconds grace_to_kill = std::chrono::milliseconds(2000);
  // The time from a signal that was passed on to SIGKILL: ranks may be saving a checkpoint.
  std::chrono::milliseconds grace_to_leave = std::chrono::seconds(30);
};

// Starts `ranks` processes with RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT (a free
// port) set, and OMP_NUM_THREADS set to a rank's share of the cores unless it is set already. Waits for all of them.
// Returns 0 if all ranks did. If a rank failed, names the first one on stderr, ends the others and returns its status
// (128 + signal if a signal killed it). SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2 are passed on to the ranks, SIGINT as
// SIGTERM; the status is then 128 + the first of these signals, if no rank failed before. Ranks have grace_to_leave to
// end before SIGKILL, which a second SIGINT sends at once. Ranks also die when this process dies. Must be called from
// the main thread of a process without other threads.
int launch_ranks(const LaunchRequest& request);

// Returns the name of the first environment variable that makes this process a rank of torchrun, mpirun or srun.
std::optional<std::string> rank_variable_present();

}  // namespace fsdp::trainer
