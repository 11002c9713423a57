#include <c10/util/Exception.h>

#include <array>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "base/env.h"
#include "fsdp/communicator.h"

namespace fsdp {
namespace {

constexpr int64_t kMaxRanks = std::numeric_limits<int>::max();

// The names that one launcher gives to the variables.
struct Launcher {
  const char* name;
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;
};

constexpr std::array<Launcher, 3> kLaunchers = {{
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"MPICH or Intel MPI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
}};

struct Place {
  int rank = 0;
  int size = 1;
};

// A rank and a number of ranks, from two variables of which both or none are set.
std::optional<Place> read_place(const char* launcher, const char* rank_name, const char* size_name) {
  const auto rank = env_int(rank_name, 0, kMaxRanks);
  const auto size = env_int(size_name, 1, kMaxRanks);
  if (!rank && !size) return std::nullopt;
  TORCH_CHECK(rank && size, "of the variables of ", launcher, " ", rank ? rank_name : size_name, " is set (",
              rank ? *rank : *size, ") but ", rank ? size_name : rank_name, " is not; set both or none");
  TORCH_CHECK(*rank < *size, rank_name, " is ", *rank, " but ", size_name, " is ", *size, ": ranks go from 0 to ",
              *size - 1);
  return Place{static_cast<int>(*rank), static_cast<int>(*size)};
}

// The launcher that started this process. torchrun may itself be started by mpirun, once a host; then its
// variables count. Otherwise two launchers that disagree are an error.
const Launcher* find_launcher() {
  const Launcher* found = nullptr;
  Place place;
  for (const auto& launcher : kLaunchers) {
    const auto next = read_place(launcher.name, launcher.rank, launcher.size);
    if (!next) continue;
    if (found == nullptr) {
      found = &launcher;
      place = *next;
      if (env_string("TORCHELASTIC_RUN_ID")) return found;
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
  const auto address = env_string("MASTER_ADDR");
  const auto port = env_int("MASTER_PORT", 1, 65535);
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
                ": with more than one host each process must be told its rank on its host");
    place = Place{environment.rank, environment.world_size};
  }
  TORCH_CHECK(place->size <= environment.world_size && place->rank <= environment.rank, launcher.local_rank, "=",
              place->rank, ", ", launcher.local_size, "=", place->size, " contradict ", launcher.rank, "=",
              environment.rank, ", ", launcher.size, "=", environment.world_size);
  environment.local_rank = place->rank;
  environment.local_world_size = place->size;
}

}  // namespace

RankEnvironment rank_environment() {
  RankEnvironment environment;
  const Launcher* launcher = find_launcher();
  if (launcher != nullptr) {
    const auto place = read_place(launcher->name, launcher->rank, launcher->size);
    environment.rank = place->rank;
    environment.world_size = place->size;
  }
  read_master(environment);
  if (launcher != nullptr) read_local_place(environment, *launcher);
  return environment;
}

}  // namespace fsdp
