// Ranks as threads of one process, so that a distributed test is an ordinary test.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "fsdp/communicator.h"

namespace fsdp::testing {

struct RankOptions {
  // The time after which an unfinished collective is an error.
  std::chrono::milliseconds timeout = std::chrono::seconds(30);
  // "gloo", "shm" or "hosts". With "hosts" and an even number of four or more ranks, the first half acts as on one host
  // and the others as on another; with other numbers of ranks it is "shm". If empty, the value of the environment
  // variable FSDP_TEST_COMMUNICATOR, or "gloo" if it is not set.
  std::string communicator = {};
  // Bytes of unused memory that ranks that share memory may keep. With 0, memory that is used after its release reads
  // as zeros.
  int64_t spare_memory = 0;
};

// Runs `body` once for each rank 0 … world_size - 1. Each rank has its own thread, its own communicator over one common
// in-memory store, and one thread for operators. Returns when all ranks have ended. A rank whose body throws leaves the
// group, so that the others get errors too. Throws std::runtime_error with the errors of all ranks, the error of the
// rank that failed first in front. A fatal failure of GoogleTest (ASSERT_*) ends only the body of its rank; return to
// skip code that depends on it. If there are fewer devices of the test's kind (test_device.h) than ranks, the test is
// skipped and ends here.
void run_ranks(int world_size, const std::function<void(std::shared_ptr<Communicator>)>& body,
               const RankOptions& options = {});

// Does the same, and returns the error of each rank, or kNoError (faults/error_of.h).
std::vector<std::string> errors_of_ranks(int world_size, const std::function<void(std::shared_ptr<Communicator>)>& body,
                                         const RankOptions& options = {});

}  // namespace fsdp::testing
