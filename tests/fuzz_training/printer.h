// Prints failed cases and their verdicts.
#pragma once

#include <cstdint>
#include <string>

#include "fuzz_training/case.h"
#include "fuzz_training/run_case.h"

namespace fsdp::fuzz {

// Returns the failure, the case as a C++ test with the calls of each step, and the command that runs it again.
std::string failure_text(uint64_t seed, const Case& training, const Verdict& verdict);

}  // namespace fsdp::fuzz
