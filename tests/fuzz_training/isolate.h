// Runs cases in processes of their own, so that a crash or a hang is the failure of one case.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>

#include "fuzz_training/run_case.h"

namespace fsdp::fuzz {

// This process must not have used LibTorch's operators, whose threads a fork does not copy.
// A case that lasts longer than `limit` is a failure; a collective has a sixth of it.
Verdict run_isolated(const Case& training, std::chrono::seconds limit);

// The next case, if there is one, and what became of it. Verdicts come in any order.
struct Job {
  uint64_t seed = 0;
  Case training;
};
using NextJob = std::function<bool(Job& job)>;
using Report = std::function<void(const Job& job, const Verdict& verdict)>;
void run_jobs(int processes, std::chrono::seconds limit, const NextJob& next, const Report& report);

}  // namespace fsdp::fuzz
