// Ranks as threads of one process, so that a distributed test is an ordinary test.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "fsdp/communicator.h"

namespace fsdp::testing {

struct RankOptions {
  // After this long a collective that does not end is an error.
  std::chrono::milliseconds timeout = std::chrono::seconds(30);
  // "gloo"; "shm"; "hosts": the first half of an even number of four or more ranks as on one host, the others as on
  // another, else "shm". Empty: what the environment variable FSDP_TEST_COMMUNICATOR says, else "gloo".
  std::string communicator = {};
  // Bytes that ranks that share memory may keep although they are not in use. None: what is used after it was given
  // back is zeros.
  int64_t spare_memory = 0;
};

// Runs `body` once for each rank 0 … world_size - 1, each in a thread of its own with a communicator of
// its own over one in-memory store and with one thread for operators. Returns when all ranks have ended. A
// rank whose body throws leaves the group, so that the others get errors too. Throws std::runtime_error with
// the errors of all ranks, that of the rank that failed first in front. A fatal failure of GoogleTest
// (ASSERT_*) ends the rank's body only: pass what follows from it by returning. Where the test's device
// (test_device.h) is one of a kind of which there are fewer than ranks, the test is skipped and ends here.
void run_ranks(int world_size, const std::function<void(std::shared_ptr<Communicator>)>& body,
               const RankOptions& options = {});

}  // namespace fsdp::testing
