// Runs a case sharded and in one process, and compares the results.
#pragma once

#include <chrono>
#include <string>

#include "fuzz_training/case.h"

namespace fsdp::fuzz {

struct Verdict {
  bool passed = false;
  // Distinguishes kinds of failures ("difference: gradient", "error: …", "crash: signal 11", "hang").
  std::string way;
  std::string text;
};

// Runs a case in this process, with ranks as threads. Errors of a run are failures, and so is a collective that does
// not end within `timeout`.
Verdict run_case(const Case& training, std::chrono::milliseconds timeout);

}  // namespace fsdp::fuzz
