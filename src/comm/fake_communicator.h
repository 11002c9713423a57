// Collectives without a network.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "fsdp/communicator.h"

namespace fsdp {

// A Work that is done when the device has done what the current stream holds by now.
std::unique_ptr<Work> make_done_work(c10::Device device = c10::kCPU);

// A group of `size` ranks of which only `rank` exists (see make_fake_communicator). With `size` 1 it is
// exact, and so serves as the communicator of a group of one; `backend` is what backend() returns.
std::shared_ptr<Communicator> make_local_communicator(int rank, int size, std::string backend);

// `own` and what `twin`, if any, has sent.
std::vector<uint64_t> with_bytes_of(const Communicator* twin, std::vector<uint64_t> own);

}  // namespace fsdp
