// Makes a group over NCCL, for the factory in fsdp/backends.h and for tests, which supply their own library.
#pragma once

#include <c10/core/Device.h>

#include <memory>
#include <string>

#include "comm/meeting/meeting_point.h"
#include "fsdp/backends.h"
#include "fsdp/communicator.h"

namespace fsdp::comm {

// Whether this build has NCCL's headers. If not, the calls below throw an error that says how to get them.
bool nccl_is_built_in();

// The device and the library that carry out the collectives.
struct NcclPlace {
  c10::Device device;   // the device of this rank's tensors
  std::string library;  // path of the NCCL library; empty: found as fsdp/backends.h says
};

// Connects rank `rank` of `size` to the other ranks that come to `point`, which may be null for a group of one. Ignores
// options.device.
std::shared_ptr<Communicator> make_nccl_communicator(const std::shared_ptr<MeetingPoint>& point, int rank, int size,
                                                     const NcclOptions& options, const NcclPlace& place);

}  // namespace fsdp::comm
