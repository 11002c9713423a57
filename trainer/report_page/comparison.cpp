#include "report_page/comparison.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <map>
#include <set>

#include "report_page/page_text.h"

namespace fsdp::trainer {

namespace {

constexpr const char* kNothing = "–";

std::string config_text(const RunData& run, const char* key) {
  if (run.config.is_null() || !run.config.contains(key)) return kNothing;
  const nlohmann::json& value = run.config[key];
  return value.is_string() ? value.get<std::string>() : value.dump();
}

// Returns the name of the model. For a model without a folder, this is the preset or its model_type.
std::string model_name(const RunData& run) {
  const nlohmann::json model = run.config.is_object() ? run.config.value("model", nlohmann::json()) : nlohmann::json();
  const nlohmann::json type = model.is_object() ? model.value("model_type", nlohmann::json()) : nlohmann::json();
  if (type.is_string()) return type.get<std::string>();
  if (model.is_string()) return model.get<std::string>();
  const std::filesystem::path path = config_text(run, "model_path");
  return path.has_filename() ? path.filename().string() : path.parent_path().filename().string();
}

struct Number {
  const char* name;
  std::function<double(const RunData&)> of;  // NaN: no value
  std::function<std::string(double)> text;
};

double last_of(const RunData& run, const char* key) {
  const Series series = series_of(run, key);
  return series.empty() ? std::nan("") : series.values.back();
}

double most_of(const RunData& run, const char* key) {
  double most = std::nan("");
  for (const double value : series_of(run, key).values) most = std::fmax(most, value);
  return most;
}

std::vector<Number> numbers() {
  const auto last = [](const char* key) { return [key](const RunData& run) { return last_of(run, key); }; };
  const auto middle = [](const char* key) {
    return [key](const RunData& run) { return median(series_of(run, key).values); };
  };
  const auto most = [](const char* key) { return [key](const RunData& run) { return most_of(run, key); }; };
  return {{"Last loss", last("loss"), number_text},
          {"Evaluation loss", last("eval_loss"), number_text},
          {"Median tokens a second", middle("tokens_per_second"), number_text},
          {"Median samples a second", middle("samples_per_second"), number_text},
          {"Median TFLOPS", middle("tflops"), number_text},
          {"Median TFLOPS including recomputation", middle("hardware_tflops"), number_text},
          {"Peak memory of a process", most("peak_memory_bytes"), bytes_text},
          {"Mapped files in its memory", most("mapped_file_bytes"), bytes_text},
          {"Peak memory of tensors on a GPU", most("peak_device_memory_bytes"), bytes_text},
          {"Median bubble of the pipeline", middle("pipeline_bubble"), number_text},
          {"Skipped steps", last("skipped_steps"), number_text}};
}

std::string with_ratio(const Number& number, double value, double first) {
  if (!std::isfinite(first) || !std::isfinite(value) || first == 0) return number.text(value);
  std::array<char, 40> ratio{};
  std::snprintf(ratio.data(), ratio.size(), " (×%.3g)", value / first);
  return number.text(value) + ratio.data();
}

void add_number(Table& table, const Number& number, const std::vector<RunData>& runs) {
  std::vector<std::string> cells;
  bool any = false;
  for (const RunData& run : runs) {
    const double value = number.of(run);
    any |= !std::isnan(value);
    cells.push_back(std::isnan(value) ? kNothing
                    : cells.empty()   ? number.text(value)
                                      : with_ratio(number, value, number.of(runs.front())));
  }
  if (any) table.rows.emplace_back(number.name, cells);
}

void add_fact(Table& table, const char* name, const std::vector<RunData>& runs,
              const std::function<std::string(const RunData&)>& text) {
  std::vector<std::string> cells;
  for (const RunData& run : runs) cells.push_back(text(run));
  if (std::any_of(cells.begin(), cells.end(), [](const std::string& cell) { return cell != kNothing; })) {
    table.rows.emplace_back(name, cells);
  }
}

Table table_of_runs(const char* head, const std::vector<RunData>& runs) {
  Table table{{head}, {}};
  for (const RunData& run : runs) table.columns.push_back(run.name);
  return table;
}

// Returns the loss by step.
std::map<int64_t, double> losses_of(const RunData& run) {
  const Series series = series_of(run, "loss");
  std::map<int64_t, double> losses;
  for (size_t i = 0; i < series.steps.size(); ++i) losses[series.steps[i]] = series.values[i];
  return losses;
}

std::string first_difference(const RunData& first, const RunData& other) {
  const std::map<int64_t, double> a = losses_of(first), b = losses_of(other);
  int64_t common = 0;
  for (const auto& [step, loss] : a) {
    const auto same_step = b.find(step);
    if (same_step == b.end()) continue;
    ++common;
    const double theirs = same_step->second;
    if (loss == theirs || (std::isnan(loss) && std::isnan(theirs))) continue;
    std::array<char, 200> text{};
    std::snprintf(text.data(), text.size(), ": losses differ first at step %lld: %.9g, and %.9g in ",
                  static_cast<long long>(step), theirs, loss);
    return other.name + text.data() + first.name;
  }
  if (common == 0) return other.name + ": has no step in common with " + first.name;
  return other.name + ": the losses of all " + std::to_string(common) + " steps in common are those of " + first.name;
}

std::string ms_text(double ms) { return number_text(ms) + " ms"; }

}  // namespace

double median(std::vector<double> values) {
  std::erase_if(values, [](double value) { return !std::isfinite(value); });
  if (values.empty()) return std::nan("");
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : values[middle - 1] / 2 + values[middle] / 2;
}

Table summary_table(const std::vector<RunData>& runs) {
  Table table = table_of_runs("", runs);
  add_fact(table, "Model", runs, model_name);
  add_fact(table, "Ranks", runs, [](const RunData& run) { return run.ranks ? std::to_string(*run.ranks) : kNothing; });
  add_fact(table, "Strategy", runs, [](const RunData& run) { return config_text(run, "sharding_strategy"); });
  add_fact(table, "Dtype", runs, [](const RunData& run) { return config_text(run, "dtype"); });
  add_fact(table, "Last step", runs, [](const RunData& run) {
    return run.lines.empty() ? std::string(kNothing) : std::to_string(run.lines.back().step);
  });
  for (const Number& number : numbers()) add_number(table, number, runs);
  return table;
}

Table config_differences(const std::vector<RunData>& runs) {
  static const std::set<std::string> kOutputs = {"output_dir", "trace_path"};
  Table table = table_of_runs("Key", runs);
  std::set<std::string> keys;
  for (const RunData& run : runs) {
    if (run.config.is_null()) continue;
    for (const auto& [key, value] : run.config.items()) keys.insert(key);
  }
  for (const std::string& key : keys) {
    std::vector<std::string> cells;
    for (const RunData& run : runs) {
      const bool has = !run.config.is_null() && run.config.contains(key);
      cells.push_back(has ? run.config[key].dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) : kNothing);
    }
    const bool same = std::equal(cells.begin() + 1, cells.end(), cells.begin());
    if (!same && !kOutputs.count(key)) table.rows.emplace_back(key, cells);
  }
  return table;
}

std::vector<std::string> first_loss_differences(const std::vector<RunData>& runs) {
  std::vector<std::string> lines;
  for (size_t i = 1; i < runs.size(); ++i) lines.push_back(first_difference(runs.front(), runs[i]));
  return lines;
}

Table step_table(const StepTimeline& step) {
  Table table{{"Rank", "computing and waiting", "of that, waiting", "waiting, share of the step", "gathers in progress",
               "reductions in progress"},
              {}};
  for (const RankTimeline& rank : step.ranks) {
    // Waits occur during computation or between computations.
    const double waits = rank.busy_ms("wait");
    std::array<char, 32> share{};
    std::snprintf(share.data(), share.size(), "%.1f %%", step.length_ms > 0 ? 100 * waits / step.length_ms : 0.0);
    table.rows.emplace_back(std::to_string(rank.rank),
                            std::vector<std::string>{ms_text(rank.busy_ms("compute")), ms_text(waits), share.data(),
                                                     ms_text(rank.busy_ms("gather")), ms_text(rank.busy_ms("reduce"))});
  }
  return table;
}

Table memory_table(const StepTimeline& step) {
  Table table{{"Peak"}, {}};
  std::vector<std::string> categories;
  for (const RankTimeline& rank : step.ranks) {
    table.columns.push_back("rank " + std::to_string(rank.rank));
    for (const std::string& category : rank.categories) {
      if (std::find(categories.begin(), categories.end(), category) == categories.end()) categories.push_back(category);
    }
  }
  for (const std::string& category : categories) {
    std::vector<std::string> cells;
    for (const RankTimeline& rank : step.ranks) {
      const auto place = std::find(rank.categories.begin(), rank.categories.end(), category);
      const auto index = static_cast<size_t>(place - rank.categories.begin());
      cells.push_back(index < rank.categories.size() ? bytes_text(rank.peak_bytes(index)) : kNothing);
    }
    table.rows.emplace_back(category, cells);
  }
  std::vector<std::string> constant, sums;
  for (const RankTimeline& rank : step.ranks) constant.push_back(bytes_text(rank.constant_bytes));
  if (!categories.empty()) table.rows.emplace_back("everything else, minimum", constant);
  for (const RankTimeline& rank : step.ranks) sums.push_back(bytes_text(rank.peak_bytes()));
  if (!categories.empty()) table.rows.emplace_back("all at once", sums);
  return table;
}

}  // namespace fsdp::trainer
