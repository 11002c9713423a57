// Makes a failing case small.
#pragma once

#include <chrono>

#include "fuzz_training/case.h"
#include "fuzz_training/run_case.h"

namespace fsdp::fuzz {

struct ReduceLimits {
  std::chrono::seconds whole{60};  // after this long it ends with what it has
  std::chrono::seconds one_case{18};
};

// Leaves out layers, steps, passes, actions and ranks, and sets options to their defaults, as long as the case fails in
// the same way (Verdict::way). `failure` becomes that of the result.
Case reduce(const Case& training, Verdict& failure, const ReduceLimits& limits);

}  // namespace fsdp::fuzz
