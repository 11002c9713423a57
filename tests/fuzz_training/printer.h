// Shows cases and what became of them.
#pragma once

#include <cstdint>
#include <string>

#include "fuzz_training/case.h"
#include "fuzz_training/run_case.h"

namespace fsdp::fuzz {

// What failed, the case as a test in C++ with the calls of each step, and how to run it again.
std::string failure_text(uint64_t seed, const Case& training, const Verdict& verdict);

}  // namespace fsdp::fuzz
