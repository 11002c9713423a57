// Runs cases in separate processes, so that a crash or a hang is the failure of one case.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>

#include "fuzz_training/run_case.h"

namespace fsdp::fuzz {

// Runs one case in a child process. The calling process must not have used LibTorch's operators, because a fork does
// not copy their threads. A case that lasts longer than `limit` fails. The timeout of a collective is a sixth of
// `limit`.
Verdict run_isolated(const Case& training, std::chrono::seconds limit);

// Runs up to `processes` cases at a time. `next` provides the next case, or returns false if there is none. `report`
// gets the verdicts, in any order.
struct Job {
  uint64_t seed = 0;
  Case training;
};
using NextJob = std::function<bool(Job& job)>;
using Report = std::function<void(const Job& job, const Verdict& verdict)>;
void run_jobs(int processes, std::chrono::seconds limit, const NextJob& next, const Report& report);

}  // namespace fsdp::fuzz
