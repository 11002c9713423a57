// Determines the place of a process in a Slurm job step (srun), from the variables that Slurm sets.
#pragma once

#include <optional>
#include <string>

namespace fsdp::comm {

struct SlurmPlace {
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  int local_size = 1;
  // The address where rank 0 must listen: the first host of the step, or this host if there is no other. The port lies
  // between 20000 and 31999 and follows from the job and step numbers.
  std::string master_address;
  int master_port = 0;
};

// Returns nothing outside a step: the shells of sbatch and salloc have some of the variables, too. Throws an error that
// names the variables if some are missing or contradict each other.
std::optional<SlurmPlace> slurm_place();

// Returns the first host of a Slurm host list, such as "node[01-03,7],other". Throws if the list cannot be parsed.
std::string first_slurm_host(const std::string& hosts);

// Returns the number of tasks on node `node`, counted from 0, in a Slurm task list, such as "2(x3),1".
int slurm_tasks_of_node(const std::string& tasks, int node);

}  // namespace fsdp::comm
