// The place of a process in a job step of Slurm (srun), from the variables that Slurm sets.
#pragma once

#include <optional>
#include <string>

namespace fsdp {

struct SlurmPlace {
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  int local_size = 1;
  // Where rank 0 is to listen: the first host of the step, or this host where there is no other; and a port between
  // 20000 and 31999 that the number of job and step gives.
  std::string master_address;
  int master_port = 0;
};

// Nothing outside of a step: the shells of sbatch and salloc have some of the variables, too. Variables that are
// missing or contradict one another are an error that names them.
std::optional<SlurmPlace> slurm_place();

// The first host of Slurm's lists, such as "node[01-03,7],other". One that does not read is an error.
std::string first_slurm_host(const std::string& hosts);

// The number of tasks on node `node`, from 0, of Slurm's lists, such as "2(x3),1".
int slurm_tasks_of_node(const std::string& tasks, int node);

}  // namespace fsdp
