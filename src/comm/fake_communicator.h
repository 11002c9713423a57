// Collectives without a network.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "fsdp/communicator.h"

namespace fsdp::comm {

// Returns a Work that is done when the device has completed all work enqueued on the current stream so far.
std::unique_ptr<Work> make_done_work(c10::Device device = c10::kCPU);

// Makes a group of `size` ranks of which only `rank` exists (see make_fake_communicator). With `size` 1 its results are
// exact, so it serves as the communicator of a group of one rank. `backend`: the result of backend(). `names`: the
// number of each rank in the first group of the family (Communicator::world_rank); empty if this is the first.
std::shared_ptr<Communicator> make_local_communicator(int rank, int size, std::string backend,
                                                      std::vector<int> names = {});

// Returns `own` plus the bytes that `twin` has sent to each rank. `twin` may be null.
std::vector<uint64_t> with_bytes_of(const Communicator* twin, std::vector<uint64_t> own);

}  // namespace fsdp::comm
