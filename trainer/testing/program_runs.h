// For tests: the program `fsdp`, run as a user runs it, on a tiny Llama.
#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "support/files/temporary_folder.h"
#include "testing/program.h"
#include "testing/tiny_llama.h"

namespace fsdp::trainer {

class ProgramRuns : public ::testing::Test {
 protected:
  ProgramRuns() { write_tiny_llama(folder_.path("model"), /*tied=*/true, 3); }

  // Returns a config that trains for a moment, with `changes` applied.
  nlohmann::json config(const nlohmann::json& changes = nlohmann::json::object()) const {
    nlohmann::json c = {{"model_path", folder_.path("model")},
                        {"dataset", "dummy:64"},
                        {"max_seq_length", 16},
                        {"train_batch_size", 2},
                        {"max_steps", 4},
                        {"dtype", "fp32"},
                        {"learning_rate", 1e-2},
                        {"output_dir", folder_.path("output")}};
    c.update(changes);
    return c;
  }
  ProgramResult train(const nlohmann::json& config, const std::string& options = "") const {
    folder_.write("config.json", config.dump());
    return run_shell("exec $FSDP train --config-path " + folder_.path("config.json") + " " + options);
  }
  std::vector<nlohmann::json> metrics(const std::string& folder = "output") const {
    std::istringstream lines(folder_.read(folder + "/metrics.jsonl"));
    std::vector<nlohmann::json> result;
    for (std::string line; std::getline(lines, line);) result.push_back(nlohmann::json::parse(line));
    return result;
  }
  // Returns the losses and norms of a run with two ranks, line by line.
  std::vector<double> losses_and_norms(const nlohmann::json& changes) const {
    const ProgramResult result = train(config(changes), "--nproc-per-node 2");
    EXPECT_EQ(result.status, 0) << result.err;
    std::vector<double> values;
    for (const nlohmann::json& line : metrics()) values.insert(values.end(), {line["loss"], line["grad_norm"]});
    return values;
  }

  testing::TemporaryFolder folder_;
};

}  // namespace fsdp::trainer
