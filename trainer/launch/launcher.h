// Starts the ranks of one machine as processes and watches over them.
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
  // After the first death, how long the others may take to end by themselves (they see closed connections and
  // say so) before SIGTERM, and how long from SIGTERM to SIGKILL.
  std::chrono::milliseconds grace_to_end = std::chrono::milliseconds(1000);
  std::chrono::milliseconds grace_to_kill = std::chrono::milliseconds(2000);
  // The same from a signal that was passed on: ranks may be saving a checkpoint.
  std::chrono::milliseconds grace_to_leave = std::chrono::seconds(30);
};

// Starts `ranks` processes with RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT
// (a free port) set, and OMP_NUM_THREADS to this rank's share of the cores unless it is set already. Waits
// for them all. Returns 0 when all ranks did; otherwise the status of the first one that failed (128 + signal
// when one killed it), after naming it on stderr and ending the others. SIGTERM, SIGHUP, SIGUSR1 and
// SIGUSR2 are passed on to the ranks, SIGINT as SIGTERM; they may take grace_to_leave to end before SIGKILL, which a
// second SIGINT sends at once. They also die when this process does. Call
// it from the main thread of a process without other threads.
int launch_ranks(const LaunchRequest& request);

// The name of the first variable of the environment that makes this process a rank of torchrun, mpirun or srun.
std::optional<std::string> rank_variable_present();

}  // namespace fsdp::trainer
