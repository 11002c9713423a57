#include "loop/plan_comparison.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <nlohmann/json.hpp>
#include <sstream>

#include "config/errors.h"
#include "config/json_object_file.h"
#include "report_page/page_text.h"

namespace fsdp::trainer {

namespace {

using nlohmann::json;

PlannedFigures figures_of(const json& plan) {
  const json& cluster = plan.at("cluster");
  const json& memory = plan.at("memory");
  PlannedFigures planned;
  planned.ranks = cluster.at("hosts").get<int64_t>() * cluster.at("ranks_per_host").get<int64_t>();
  planned.parameters = plan.at("model").at("parameters");
  planned.on_cpus = !memory.contains("device");
  for (const json& category : plan.at("engine")) {
    planned.categories.push_back({.name = category.at("name"), .peak = category.at("peak")});
  }
  planned.bytes = planned.on_cpus
                      ? memory.at("host").at("per_host").get<int64_t>() / cluster.at("ranks_per_host").get<int64_t>()
                      : memory.at("device").at("allocated").get<int64_t>();
  if (plan.contains("pipeline")) {
    planned.pipeline_degree = static_cast<int64_t>(plan["pipeline"].at("ranks").size());
    planned.rank_of_pipeline = plan.at("rank").get<int64_t>();
  }
  if (plan.contains("time")) planned.step_seconds = plan["time"].at("step_seconds").get<double>();
  return planned;
}

std::string table_row(const std::string& name, const std::string& planned, const std::string& measured,
                      const std::string& difference) {
  std::ostringstream row;
  row << "\n  " << std::left << std::setw(34) << name << std::right << std::setw(12) << planned << std::setw(12)
      << measured;
  if (!difference.empty()) row << std::setw(10) << difference;
  return row.str();
}

// "+3.1 %" if more was measured than planned.
std::string difference_text(double planned, double measured) {
  if (planned == measured) return "=";
  if (planned <= 0) return "";
  std::ostringstream text;
  text << std::showpos << std::fixed << std::setprecision(1) << 100 * (measured / planned - 1) << " %";
  return text.str();
}

std::string bytes_row(const std::string& name, int64_t planned, int64_t measured) {
  const auto before = static_cast<double>(planned), after = static_cast<double>(measured);
  return table_row(name, bytes_text(before), bytes_text(after), difference_text(before, after));
}

}  // namespace

PlannedFigures read_planned_figures(const std::string& file) {
  const json plan = read_json_object(file);
  try {
    PlannedFigures planned = figures_of(plan);
    planned.file = file;
    return planned;
  } catch (const json::exception& error) {
    throw ConfigError(
        c10::str("--plan ", file, ": is not a plan as `fsdp plan --json` prints it (", error.what(), ")"));
  }
}

void check_plan_is_of(const PlannedFigures& planned, const Config& config, int64_t ranks, c10::Device device,
                      int64_t parameters) {
  const auto refuse = [&](const std::string& plan, const std::string& run) {
    throw ConfigError(c10::str("--plan ", planned.file, ": the plan is of ", plan, ", but this run has ", run,
                               "; plan this run, or leave out --plan"));
  };
  if (planned.ranks != ranks) refuse(c10::str(planned.ranks, " ranks"), std::to_string(ranks));
  if (planned.on_cpus != device.is_cpu()) {
    refuse(planned.on_cpus ? "ranks on CPUs" : "ranks with GPUs", device.is_cpu() ? "CPUs" : "GPUs");
  }
  const int64_t degree = config.parallelism.pipeline_degree;
  if (planned.pipeline_degree != degree) {
    refuse(c10::str("a model in ", planned.pipeline_degree, " part(s) of a pipeline"), std::to_string(degree));
  }
  if (planned.rank_of_pipeline > 0) {
    throw ConfigError(c10::str("--plan ", planned.file, ": the plan is of rank ", planned.rank_of_pipeline,
                               ", but rank 0 is measured, which has another stage; plan this run with --rank 0"));
  }
  if (planned.parameters != parameters) {
    refuse(c10::str("a model with ", planned.parameters, " parameters"), std::to_string(parameters));
  }
}

std::string comparison_text(const PlannedFigures& planned, const MeasuredFigures& measured) {
  std::string text = "planned in " + planned.file +
                     ", and measured by rank 0:" + table_row("peaks of memory", "planned", "measured", "");
  for (const MemoryCategory& category : planned.categories) {
    const auto found = std::find_if(measured.categories.begin(), measured.categories.end(),
                                    [&](const MemoryCategory& other) { return other.name == category.name; });
    if (found != measured.categories.end()) text += bytes_row(category.name, category.peak, found->peak);
  }
  text += bytes_row(planned.on_cpus ? "the whole process" : "all tensors on the device", planned.bytes, measured.bytes);
  const auto milliseconds = [](double seconds) { return number_text(1e3 * seconds) + " ms"; };
  if (planned.step_seconds) {
    return text + table_row("time of a step", milliseconds(*planned.step_seconds), milliseconds(measured.step_seconds),
                            difference_text(*planned.step_seconds, measured.step_seconds));
  }
  return text + table_row("time of a step", "–", milliseconds(measured.step_seconds), "");
}

StepResult StepClock::timed(const std::function<StepResult()>& step) {
  const auto begin = std::chrono::steady_clock::now();
  StepResult result = step();
  seconds_.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  return result;
}

double StepClock::seconds() const {
  std::vector<double> sorted(seconds_.begin() + (seconds_.size() > 1 ? 1 : 0), seconds_.end());
  if (sorted.empty()) return std::nan("");
  std::sort(sorted.begin(), sorted.end());
  return sorted[sorted.size() / 2];
}

}  // namespace fsdp::trainer
