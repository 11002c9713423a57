// Where a rank computes, and how it talks to the others.
#pragma once

#include <c10/core/Device.h>

#include <memory>
#include <string>

#include "config/config.h"
#include "fsdp/communicator.h"

namespace fsdp::trainer {

struct RankPlace {
  c10::Device device = c10::kCPU;
  std::shared_ptr<Communicator> communicator;
  std::string text;  // of the choice, for the log of rank 0; may be empty
};

// What the keys `device` and `comm_backend` come to.
struct PlaceChoice {
  c10::Device device = c10::kCPU;
  std::string backend;  // "gloo", "nccl", "shm", or "auto", on the CPU, where ranks find out when they meet
  std::string text;     // what was chosen, and why where the config left it open
};

// What there is to choose from: `gpus`, those that this process can use; `nccl`, whether the program was built with it.
struct PlacesAvailable {
  int gpus = 0;
  bool nccl = false;
};
PlacesAvailable places_available();

// For the rank of `environment`. A ConfigError where the config asks for what is not available. Touches no other rank.
PlaceChoice choose_place(const Config& config, const RankEnvironment& environment, const PlacesAvailable& available);

// Meets the other ranks.
RankPlace take_place(const PlaceChoice& choice, const RankEnvironment& environment);

}  // namespace fsdp::trainer
