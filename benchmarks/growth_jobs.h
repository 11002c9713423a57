// What is to cost in proportion to a model's size: jobs for benchmarks/growth.py, which times them, and for
// tests/growth, which counts the steps of the library in them.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace fsdp::growth {

// Runs `action`, times it or counts its steps, and keeps the smallest figure of each `what`.
using Meter = std::function<void(const std::string& what, const std::function<void()>& action)>;

struct Job {
  std::string name;
  std::string size;  // the unit in which `run` counts
  std::function<void(int64_t size, const Meter& meter)> run;
};

// Of one rank, but for "checkpoint", which runs on all that a launcher has started. Files are made in the temporary
// folder and removed, but for the checkpoint where the environment variable FSDP_GROWTH_FOLDER names its folder.
const std::vector<Job>& jobs();

}  // namespace fsdp::growth
