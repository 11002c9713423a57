// The device on which a rank computes, and its communicator.
#pragma once

#include <c10/core/Device.h>

#include <memory>
#include <string>

#include "config/config.h"
#include "fsdp/communicator.h"
#include "fsdp/rank_environment.h"

namespace fsdp::trainer {

struct RankPlace {
  c10::Device device = c10::kCPU;
  std::shared_ptr<Communicator> communicator;
  std::string text;  // describes the choice for the log of rank 0; may be empty
};

// The choice that follows from the keys `device` and `comm_backend`.
struct PlaceChoice {
  c10::Device device = c10::kCPU;
  std::string backend;  // "gloo", "nccl", "shm", or (on the CPU) "auto": decided when the ranks meet
  std::string text;     // the choice, and its reason if the config left it open
};

// The available choices. `gpus`: the number of GPUs that this process can use. `nccl`: whether the program was built
// with NCCL.
struct PlacesAvailable {
  int gpus = 0;
  bool nccl = false;
};
PlacesAvailable places_available();

// Opens LibTorch's CUDA library, where there is one and this program was linked without it, as that of a Python wheel
// is: one program serves LibTorch's CPU and CUDA builds. Must come before the first use of devices. Prints a warning if
// the library is there and cannot be opened.
void open_cuda_library();

// Chooses for the rank of `environment`. Throws a ConfigError if the config asks for something that is not available.
// Does not communicate.
PlaceChoice choose_place(const CommunicationConfig& config, const RankEnvironment& environment,
                         const PlacesAvailable& available);

// Connects to the other ranks.
RankPlace take_place(const PlaceChoice& choice, const RankEnvironment& environment);

}  // namespace fsdp::trainer
