// The place of this process among the ranks, from the environment that its launcher sets.
#pragma once

#include <string>

namespace fsdp {

// This rank's numbers and the meeting point of all ranks, from the environment that torchrun, mpirun or srun sets.
struct RankEnvironment {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  std::string master_address = "127.0.0.1";
  int master_port = 29500;
};

// Reads RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT (torchrun), or OMPI_COMM_WORLD_RANK,
// PMI_RANK, MV2_COMM_WORLD_RANK, … (mpirun, with MASTER_ADDR and MASTER_PORT), or SLURM_PROCID, SLURM_STEP_NUM_TASKS, …
// if srun started the process. With srun, if MASTER_ADDR and MASTER_PORT are not set, the first host of the step and a
// port derived from job and step are used. Without any of these variables: one rank. Missing or contradictory
// variables, and variables of unknown launchers, are an error that names them.
RankEnvironment rank_environment();

}  // namespace fsdp
