// Collectives without a network.
#pragma once

#include <memory>
#include <string>

#include "fsdp/communicator.h"

namespace fsdp {

// A Work that is done already.
std::unique_ptr<Work> make_done_work();

// A group of `size` ranks of which only `rank` exists (see make_fake_communicator). With `size` 1 it is
// exact, and so serves as the communicator of a group of one; `backend` is what backend() returns.
std::shared_ptr<Communicator> make_local_communicator(int rank, int size, std::string backend);

}  // namespace fsdp
