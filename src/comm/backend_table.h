// The back ends of communication in one table: for configurations, their help and their errors, and to make one by its
// name. Code that links no communicator can use everything here but make_communicator.
#pragma once

#include <array>
#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "fsdp/rank_environment.h"

namespace c10 {
struct Device;
}

namespace fsdp {

class Communicator;

}  // namespace fsdp

namespace fsdp::comm {

class MeetingPoint;

struct Backend {
  std::string_view name;     // in configurations, and as Communicator::backend()
  std::string_view words;    // in sentences
  bool on_cpus;              // whether it serves ranks that compute on CPUs
  bool on_gpus;              // whether it serves ranks that compute on GPUs
  std::string_view meaning;  // for help: a sentence without its beginning "`name`: "

  constexpr bool serves(bool gpus) const { return gpus ? on_gpus : on_cpus; }
};

inline constexpr std::array<Backend, 3> kBackends = {{
    {"shm", "shared memory", true, false,
     "through shared memory, for ranks on the CPUs of one host; parameters are then gathered without being copied."},
    {"gloo", "Gloo", true, true,
     "over the hosts' network, for any device (tensors on a GPU are copied to the host and back)."},
    {"nccl", "NCCL", false, true, "between GPUs."},
}};

// Returns the back end of this name, or null if there is none.
constexpr const Backend* find_backend(std::string_view name) {
  for (const Backend& backend : kBackends) {
    if (backend.name == name) return &backend;
  }
  return nullptr;
}

// Returns the names of the back ends that serve ranks on GPUs, or on CPUs, after "auto".
inline std::vector<std::string> backends_for(bool gpus) {
  std::vector<std::string> names = {"auto"};
  for (const Backend& backend : kBackends) {
    if (backend.serves(gpus)) names.emplace_back(backend.name);
  }
  return names;
}

// Connects this rank to the others with the default options of the back end, which must serve `device`. Collective and
// blocking. Throws if the ranks do not meet, and if the program was built without the back end.
std::shared_ptr<Communicator> make_communicator(const Backend& backend, const RankEnvironment& environment,
                                                c10::Device device);

// A rank of a group, whose ranks meet at `point`.
struct RankAt {
  std::shared_ptr<MeetingPoint> point;  // may be null for a group of one
  int rank = 0;
  int size = 1;
  std::chrono::milliseconds timeout = std::chrono::minutes(30);  // as in GlooOptions
  std::string host = {};                                         // as in GlooOptions
};

// Connects a rank to the others that come to its point. Does not check that the back end serves `device`: shared memory
// and Gloo copy the tensors of a GPU.
std::shared_ptr<Communicator> make_communicator(const Backend& backend, const RankAt& rank, c10::Device device);

}  // namespace fsdp::comm
