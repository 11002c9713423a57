// Makes a failing case smaller.
#pragma once

#include <chrono>
#include <functional>

#include "fuzz_training/case.h"
#include "fuzz_training/run_case.h"

namespace fsdp::fuzz {

using RunCase = std::function<Verdict(const Case& training)>;

// Removes layers, steps, passes, actions and ranks, and sets options to their defaults, as long as the case fails in
// the same way (Verdict::way). Returns the smallest case found, and sets `failure` to its verdict. Stops after `limit`
// with the result so far.
Case reduce(const Case& training, Verdict& failure, const RunCase& run_case, std::chrono::seconds limit);

}  // namespace fsdp::fuzz
