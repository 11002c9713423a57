// output_dir/run.json: the config and the number of ranks of a run. For `fsdp report`.
#pragma once

#include <cstdint>
#include <string>

#include "config/config.h"

namespace fsdp::trainer {

constexpr const char* kRunFactsFile = "run.json";

// Writes {"ranks": N, "config": {all keys}} to output_dir/run.json. Replaces the file of an earlier run.
void write_run_facts(const Config& config, int64_t ranks);

}  // namespace fsdp::trainer
