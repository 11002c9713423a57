// Makes a failing case small.
#pragma once

#include <chrono>
#include <functional>

#include "fuzz_training/case.h"
#include "fuzz_training/run_case.h"

namespace fsdp::fuzz {

using RunCase = std::function<Verdict(const Case& training)>;

// Leaves out layers, steps, passes, actions and ranks, and sets options to their defaults, as long as the case fails in
// the same way (Verdict::way). `failure` becomes that of the result. After `limit` it ends with what it has.
Case reduce(const Case& training, Verdict& failure, const RunCase& run_case, std::chrono::seconds limit);

}  // namespace fsdp::fuzz
