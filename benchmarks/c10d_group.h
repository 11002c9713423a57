// c10d's ProcessGroupGloo, which PyTorch uses from Python, for comparison with this library's communicator.
#pragma once

#ifndef USE_DISTRIBUTED
#define USE_DISTRIBUTED
#endif
#ifndef USE_C10D_GLOO
#define USE_C10D_GLOO
#endif
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <cstdint>
#include <string>

#include "fsdp/communicator.h"
#include "fsdp/rank_environment.h"

namespace fsdp::benchmarks {

// Makes the group of all ranks. It uses the same port as this library's own group, under the prefix `name`.
inline c10::intrusive_ptr<c10d::ProcessGroupGloo> make_c10d_group(const RankEnvironment& place,
                                                                  const std::string& name) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(place.master_port);
  options.isServer = place.rank == 0;
  options.waitWorkers = false;
  options.multiTenant = true;
  auto store =
      c10::make_intrusive<c10d::PrefixStore>(name, c10::make_intrusive<c10d::TCPStore>(place.master_address, options));
  auto gloo = c10d::ProcessGroupGloo::Options::create();
  gloo->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(place.master_address));
  return c10::make_intrusive<c10d::ProcessGroupGloo>(store, place.rank, place.world_size, gloo);
}

}  // namespace fsdp::benchmarks
