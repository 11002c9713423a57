#include "setup/rank_place.h"

#include <c10/util/StringUtil.h>
#include <dlfcn.h>

#include <cstdio>

#include "base/counted.h"
#include "base/device_stream.h"
#include "comm/backend_table.h"
#include "comm/nccl/nccl_communicator.h"
#include "config/config_names.h"
#include "config/config_schema.h"
#include "config/errors.h"
#include "fsdp/backends.h"

namespace fsdp::trainer {

namespace {

// Returns a text such as "2 ranks on this host and 1 GPU".
std::string ranks_and_gpus(const RankEnvironment& environment, const PlacesAvailable& available) {
  return base::counted(environment.local_world_size, "rank") + " on this host and " +
         (available.gpus == 0 ? "no GPU that LibTorch can use" : base::counted(available.gpus, "GPU"));
}

bool chooses_cuda(const CommunicationConfig& config, const RankEnvironment& environment,
                  const PlacesAvailable& available) {
  if (config.device == DeviceChoice::kCpu) return false;
  const bool enough = environment.local_world_size <= available.gpus;
  if (config.device == DeviceChoice::kCuda && !enough) {
    throw ConfigError("key \"device\": \"cuda\" needs a GPU for each rank, but there are " +
                      ranks_and_gpus(environment, available) + "; accepted here: \"cpu\" or \"auto\"");
  }
  return enough;
}

const comm::Backend& backend_named(const std::string& name) {
  const comm::Backend* backend = comm::find_backend(name);
  TORCH_CHECK(backend, "fsdp: there is no back end '", name, "' of communication");
  return *backend;
}

std::vector<std::string> quoted(std::vector<std::string> words) {
  for (std::string& word : words) word = "\"" + word + "\"";
  return words;
}

std::string choose_backend(const CommunicationConfig& config, bool cuda, const PlacesAvailable& available) {
  if (config.backend == "auto") return !cuda ? "auto" : available.nccl ? "nccl" : "gloo";
  const comm::Backend& backend = backend_named(config.backend);
  if (!backend.serves(cuda)) {
    throw ConfigError(c10::str("key \"comm_backend\": \"", backend.name, "\" needs ranks on ", cuda ? "CPUs" : "GPUs",
                               ", but \"device\" is \"", config_name(config.device), "\", which means ",
                               cuda ? "GPUs" : "the CPU",
                               " here; accepted: ", join_or(quoted(comm::backends_for(cuda)))));
  }
  if (backend.name == "nccl" && !available.nccl) {
    throw ConfigError(
        "key \"comm_backend\": \"nccl\", but this program was built without NCCL's headers "
        "(scripts/nccl_headers.sh gets them); accepted: \"auto\" or \"gloo\"");
  }
  return config.backend;
}

std::string words_for(const std::string& backend) {
  if (backend == "shm+gloo") return "shared memory and Gloo";
  return std::string(backend_named(backend).words);
}

}  // namespace

PlacesAvailable places_available() {
  return {.gpus = base::device_count(c10::kCUDA), .nccl = comm::nccl_is_built_in()};
}

void open_cuda_library() {
  constexpr const char* kName = "libtorch_cuda.so";
  // Kept open until the process ends.
  if (dlopen(kName, RTLD_NOW | RTLD_GLOBAL) != nullptr) return;
  const std::string reason = dlerror();
  const bool absent = reason.rfind(c10::str(kName, ": cannot open shared object file: No such file"), 0) == 0;
  if (!absent) {
    std::fprintf(stderr, "fsdp: warning: no GPU can be used, as LibTorch's CUDA library cannot be opened: %s\n",
                 reason.c_str());
  }
}

PlaceChoice choose_place(const CommunicationConfig& config, const RankEnvironment& environment,
                         const PlacesAvailable& available) {
  const bool cuda = chooses_cuda(config, environment, available);
  PlaceChoice choice;
  if (cuda) choice.device = {c10::kCUDA, static_cast<c10::DeviceIndex>(environment.local_rank)};
  choice.backend = choose_backend(config, cuda, available);
  choice.text = c10::str("training on ", cuda ? "GPUs" : "the CPU");
  if (config.device == DeviceChoice::kAuto) choice.text += " (" + ranks_and_gpus(environment, available) + ")";
  if (choice.backend != "auto") choice.text += ", communicating over " + words_for(choice.backend);
  if (cuda && config.backend == "auto" && !available.nccl) choice.text += " (this program was built without NCCL)";
  return choice;
}

RankPlace take_place(const PlaceChoice& choice, const RankEnvironment& environment) {
  if (choice.backend == "auto") {
    const auto [communicator, reason] = make_cpu_communicator(environment);
    return {choice.device, communicator,
            c10::str(choice.text, ", communicating over ", words_for(communicator->backend()), ": ", reason)};
  }
  return {choice.device, comm::make_communicator(backend_named(choice.backend), environment, choice.device),
          choice.text};
}

}  // namespace fsdp::trainer
