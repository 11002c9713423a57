// For tests: whole runs of the trainer, with ranks as threads.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "config/config.h"
#include "support/temporary_folder.h"
#include "training/train_rank.h"

namespace fsdp::trainer {

// Four steps of a tiny Llama in folder/model, evaluated and saved. The folder must have the model
// (testing/tiny_llama.h).
Config small_run(const testing::TemporaryFolder& folder);

// What a run leaves.
struct Left {
  // By step, "eval" last: the line of metrics.jsonl that counts (the last one of the step), without what depends on
  // time or memory.
  std::map<std::string, std::string> metrics;
  std::string weights;  // of the final model, the file's bytes
  RunEnd end = RunEnd::kFinished;
};

// Runs `config` with output_dir folder/name.
Left run_whole(
    Config config, const testing::TemporaryFolder& folder, const std::string& name, int world_size,
    const std::function<c10::Device(int rank)>& device_of = [](int) { return c10::Device(c10::kCPU); });

}  // namespace fsdp::trainer
