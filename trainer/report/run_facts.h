// output_dir/run.json: what a run was told to do, and over how many ranks. For `fsdp report`.
#pragma once

#include <cstdint>
#include <string>

#include "config/config.h"

namespace fsdp::trainer {

constexpr const char* kRunFactsFile = "run.json";

// Writes {"ranks": N, "config": {all keys}} to output_dir/run.json, replacing what an earlier run has left there.
void write_run_facts(const Config& config, int64_t ranks);

}  // namespace fsdp::trainer
