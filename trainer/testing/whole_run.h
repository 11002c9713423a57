// For tests: whole runs of the trainer, with ranks as threads.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "config/config.h"
#include "loop/train_rank.h"
#include "support/files/temporary_folder.h"

namespace fsdp::trainer {

// Returns a config of four steps of the tiny Llama in folder/model, evaluated and saved. The folder must contain the
// model (testing/tiny_llama.h).
Config small_run(const testing::TemporaryFolder& folder);

// The results of a run.
struct Left {
  // By step, "eval" last: the valid line of metrics.jsonl (the last one of the step), without values that depend on
  // time or memory.
  std::map<std::string, std::string> metrics;
  std::string weights;  // the bytes of the final model's file
  RunEnd end = RunEnd::kFinished;
};

// Runs `config` with folder/name as output_dir.
Left run_whole(
    Config config, const testing::TemporaryFolder& folder, const std::string& name, int world_size,
    const std::function<c10::Device(int rank)>& device_of = [](int) { return c10::Device(c10::kCPU); });

// A config and its number of ranks.
struct RunOnRanks {
  Config config;
  int ranks;
};

// Runs one step of each, which resumes from the checkpoint of the one before it: step N with configs[N - 1]. Every
// second one saves asynchronously. Returns the name of the last run.
std::string run_in_turns(const std::vector<RunOnRanks>& configs, const testing::TemporaryFolder& folder);

}  // namespace fsdp::trainer
