#include "report_page/run_data.h"

#include <c10/util/Exception.h>

#include <cmath>
#include <filesystem>
#include <limits>
#include <set>
#include <system_error>

#include "formats/common/json_text.h"
#include "fsdp/errors.h"
#include "report/run_facts.h"

namespace fsdp::trainer {

namespace {

namespace fs = std::filesystem;

// Reads "config" and "ranks" from the file, if it contains them.
void read_facts(const fs::path& folder, RunData& run) {
  if (fs::exists(folder / kRunFactsFile)) {
    const nlohmann::json facts = formats::read_json_file(folder / kRunFactsFile);
    if (facts.is_object() && facts.contains("ranks") && facts["ranks"].is_number_integer()) {
      const auto ranks = facts["ranks"].get<int64_t>();
      if (ranks > 0) run.ranks = ranks;
    }
    if (facts.is_object() && facts.contains("config") && facts["config"].is_object()) run.config = facts["config"];
  } else if (fs::exists(folder / "resolved_config.json")) {
    run.config = formats::read_json_file(folder / "resolved_config.json");
  }
  if (!run.config.is_object()) run.config = nullptr;
}

// Reads the run's trace from the path in the config or, if the folder was moved, from the folder itself.
void read_trace(const fs::path& folder, RunData& run) {
  if (run.config.is_null() || !run.config.contains("trace_path") || !run.config["trace_path"].is_string()) return;
  const fs::path said = run.config["trace_path"].get<std::string>();
  for (const fs::path& path : {said, folder / said.filename()}) {
    std::error_code cannot_be_a_path;
    if (!fs::is_regular_file(path, cannot_be_a_path)) continue;
    run.step = read_step_timeline(path);
    if (!run.step) run.no_step = path.string() + " holds no complete step";
    return;
  }
  run.no_step = "the trace " + said.string() + " does not exist";
}

RunData read_run(const std::string& folder) {
  const fs::path metrics = fs::path(folder) / "metrics.jsonl";
  if (!fs::is_directory(folder)) throw FileError(folder + ": no such folder");
  if (!fs::exists(metrics)) {
    throw FileError(folder + ": holds no metrics.jsonl; name the output_dir of a run of fsdp train");
  }
  RunData run{.lines = read_metrics(metrics.string())};
  read_facts(folder, run);
  read_trace(folder, run);
  return run;
}

std::string last_part(const std::string& folder) {
  const fs::path path = fs::absolute(folder).lexically_normal();
  return (path.has_filename() ? path : path.parent_path()).filename().string();
}

// Returns the last part of each path, or the whole given path if other paths end in the same part.
std::vector<std::string> names_of(const std::vector<std::string>& folders) {
  std::multiset<std::string> parts;
  for (const std::string& folder : folders) parts.insert(last_part(folder));
  std::vector<std::string> names;
  for (const std::string& folder : folders) {
    names.push_back(parts.count(last_part(folder)) == 1 ? last_part(folder) : folder);
  }
  return names;
}

void refuse_repetitions(const std::vector<std::string>& folders) {
  std::set<fs::path> seen;
  for (const std::string& folder : folders) {
    TORCH_CHECK(seen.insert(fs::weakly_canonical(folder)).second, folder, ": is given twice");
  }
}

}  // namespace

std::vector<RunData> read_runs(const std::vector<std::string>& folders) {
  std::vector<RunData> runs;
  for (const std::string& folder : folders) runs.push_back(read_run(folder));
  refuse_repetitions(folders);
  const std::vector<std::string> names = names_of(folders);
  for (size_t i = 0; i < runs.size(); ++i) runs[i].name = names[i];
  return runs;
}

Series series_of(const RunData& run, const std::string& key) {
  Series series;
  for (const MetricsLine& line : run.lines) {
    const auto value = line.values.find(key);
    if (value == line.values.end()) continue;
    series.steps.push_back(line.step);
    series.values.push_back(value->is_number()    ? value->get<double>()
                            : value->is_boolean() ? static_cast<double>(value->get<bool>())
                                                  : std::numeric_limits<double>::quiet_NaN());
  }
  return series;
}

}  // namespace fsdp::trainer
