// Jobs whose cost must be proportional to a model's size. benchmarks/growth.py times them, and tests/growth counts the
// library's steps in them.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace fsdp::growth {

// Runs `action`, measures its time or its steps, and keeps the smallest result for each `what`.
using Meter = std::function<void(const std::string& what, const std::function<void()>& action)>;

struct Job {
  std::string name;
  std::string size;  // the unit of `size`
  std::function<void(int64_t size, const Meter& meter)> run;
};

// Jobs run on one rank, except for "checkpoint", which runs on all ranks that a launcher has started. Jobs make files
// in the temporary folder and remove them. If the environment variable FSDP_GROWTH_FOLDER names a folder, the
// checkpoint is kept there.
const std::vector<Job>& jobs();

}  // namespace fsdp::growth
