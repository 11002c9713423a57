// Runs ranks over Gloo, whichever communicator the other tests use, for tests that measure bytes sent, copied or held.
#pragma once

#include <functional>
#include <memory>

#include "support/ranks/thread_ranks.h"

namespace fsdp::testing {

inline void run_ranks_over_gloo(int world_size, const std::function<void(std::shared_ptr<Communicator>)>& body) {
  run_ranks(world_size, body, {.communicator = "gloo"});
}

}  // namespace fsdp::testing
