// How a group over NCCL is made; for the factory of communicator.h and for tests, which bring a library of their own.
#pragma once

#include <c10/core/Device.h>

#include <memory>
#include <string>

#include "comm/meeting_point.h"
#include "fsdp/communicator.h"

namespace fsdp {

// Whether this build has NCCL's headers: if not, the calls below throw, and say how to get them.
bool nccl_is_built_in();

// What carries out the collectives.
struct NcclPlace {
  c10::Device device;   // where this rank's tensors must be
  std::string library;  // path of the NCCL library; empty: found as communicator.h says
};

// Connects rank `rank` of `size` to the others that come to `point`, which may be null for a group of one.
// options.device is not looked at.
std::shared_ptr<Communicator> make_nccl_communicator(const std::shared_ptr<MeetingPoint>& point, int rank, int size,
                                                     const NcclOptions& options, const NcclPlace& place);

}  // namespace fsdp
