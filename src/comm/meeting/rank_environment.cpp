#include <c10/util/Exception.h>

#include <array>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "base/env.h"
#include "comm/meeting/slurm_environment.h"
#include "fsdp/communicator.h"
#include "fsdp/rank_environment.h"

namespace fsdp {
namespace {

constexpr int64_t kMaxRanks = std::numeric_limits<int>::max();

// The variable names of one launcher.
struct Launcher {
  const char* name;
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;
};

constexpr std::array<Launcher, 4> kLaunchers = {{
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"MVAPICH2", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK",
     "MV2_COMM_WORLD_LOCAL_SIZE"},
    {"MPICH or Intel MPI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
}};

// Rank variables of launchers that do not give the number of ranks.
constexpr std::array kRanksAlone = {"PMIX_RANK", "PALS_RANKID", "FLUX_TASK_RANK"};

struct Place {
  int rank = 0;
  int size = 1;
};

// Reads a rank and a number of ranks from two variables; both or neither must be set.
std::optional<Place> read_place(const char* launcher, const char* rank_name, const char* size_name) {
  const auto rank = base::env_int(rank_name, 0, kMaxRanks);
  const auto size = base::env_int(size_name, 1, kMaxRanks);
  if (!rank && !size) return std::nullopt;
  TORCH_CHECK(rank && size, "of the variables of ", launcher, " ", rank ? rank_name : size_name, " is set (",
              rank ? *rank : *size, ") but ", rank ? size_name : rank_name, " is not; set both or none");
  TORCH_CHECK(*rank < *size, rank_name, " is ", *rank, " but ", size_name, " is ", *size, ": ranks go from 0 to ",
              *size - 1);
  return Place{static_cast<int>(*rank), static_cast<int>(*size)};
}

// Whether srun has set the launcher's variables: some of its plugins also set the PMI variables, which contain less.
bool is_of_slurm(const Launcher& launcher, const Place& place, const std::optional<comm::SlurmPlace>& slurm) {
  return slurm && launcher.rank == std::string("PMI_RANK") && place.rank == slurm->rank && place.size == slurm->size &&
         !base::env_string(launcher.local_rank);
}

// Returns the launcher that started this process, or null. torchrun may itself be started by mpirun, once for each
// host; then the variables of torchrun count. Otherwise it is an error if two launchers disagree.
const Launcher* find_launcher(const std::optional<comm::SlurmPlace>& slurm) {
  const Launcher* found = nullptr;
  Place place;
  for (const auto& launcher : kLaunchers) {
    const auto next = read_place(launcher.name, launcher.rank, launcher.size);
    if (!next || is_of_slurm(launcher, *next, slurm)) continue;
    if (found == nullptr) {
      found = &launcher;
      place = *next;
      if (base::env_string("TORCHELASTIC_RUN_ID")) return found;
      continue;
    }
    TORCH_CHECK(next->rank == place.rank && next->size == place.size, found->rank, "=", place.rank, ", ", found->size,
                "=", place.size, " contradict ", launcher.rank, "=", next->rank, ", ", launcher.size, "=", next->size,
                "; unset those of the launcher that you do not use");
  }
  return found;
}

bool is_loopback(const std::string& address) {
  return address == "localhost" || address == "::1" || address.rfind("127.", 0) == 0;
}

void read_master(RankEnvironment& environment) {
  const auto address = base::env_string("MASTER_ADDR");
  const auto port = base::env_int("MASTER_PORT", 1, 65535);
  TORCH_CHECK(environment.world_size == 1 || (address && port), address ? "MASTER_PORT" : "MASTER_ADDR",
              " is not set: ", environment.world_size,
              " ranks need MASTER_ADDR (host or address of rank 0) and MASTER_PORT (a free port there)");
  if (address) environment.master_address = *address;
  if (port) environment.master_port = static_cast<int>(*port);
}

void read_local_place(RankEnvironment& environment, const Launcher& launcher) {
  auto place = read_place(launcher.name, launcher.local_rank, launcher.local_size);
  if (!place) {
    TORCH_CHECK(environment.world_size == 1 || is_loopback(environment.master_address), launcher.local_rank, " and ",
                launcher.local_size, " are not set, and MASTER_ADDR is ", environment.master_address,
                ": with more than one host, set both for each process");
    place = Place{environment.rank, environment.world_size};
  }
  TORCH_CHECK(place->size <= environment.world_size && place->rank <= environment.rank, launcher.local_rank, "=",
              place->rank, ", ", launcher.local_size, "=", place->size, " contradict ", launcher.rank, "=",
              environment.rank, ", ", launcher.size, "=", environment.world_size);
  environment.local_rank = place->rank;
  environment.local_world_size = place->size;
}

void read_place_of_launcher(RankEnvironment& environment, const Launcher& launcher) {
  const auto place = read_place(launcher.name, launcher.rank, launcher.size);
  environment.rank = place->rank;
  environment.world_size = place->size;
  read_master(environment);
  read_local_place(environment, launcher);
}

void read_place_of_slurm(RankEnvironment& environment, const comm::SlurmPlace& place) {
  environment.rank = place.rank;
  environment.world_size = place.size;
  environment.local_rank = place.local_rank;
  environment.local_world_size = place.local_size;
  environment.master_address = base::env_string("MASTER_ADDR").value_or(place.master_address);
  environment.master_port = static_cast<int>(base::env_int("MASTER_PORT", 1, 65535).value_or(place.master_port));
}

void refuse_unknown_launchers() {
  for (const char* variable : kRanksAlone) {
    const auto rank = base::env_string(variable);
    TORCH_CHECK(!rank, variable, " is set (", *rank,
                "), so a launcher started this process as one rank of several, but "
                "fsdp does not know that launcher's variables; set RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, "
                "MASTER_ADDR and MASTER_PORT for each process, or unset ",
                variable, " for a run of one rank");
  }
}

}  // namespace

RankEnvironment rank_environment() {
  RankEnvironment environment;
  const std::optional<comm::SlurmPlace> slurm = comm::slurm_place();
  if (const Launcher* launcher = find_launcher(slurm)) {
    read_place_of_launcher(environment, *launcher);
  } else if (slurm) {
    read_place_of_slurm(environment, *slurm);
  } else {
    refuse_unknown_launchers();
    read_master(environment);
  }
  return environment;
}

}  // namespace fsdp
