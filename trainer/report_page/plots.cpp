#include "report_page/plots.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "report_page/page_text.h"

namespace fsdp::trainer {

namespace {

constexpr size_t kMostPoints = 2000;  // per curve; a screen has no more columns
constexpr double kLargestDrawn = 1e30;

struct Kind {
  const char* key;
  const char* title;
  const char* unit;
  bool from_zero;
};

constexpr Kind kKinds[] = {
    {"loss", "Loss", "", false},
    {"grad_norm", "Gradient norm before clipping", "", false},
    {"learning_rate", "Learning rate", "", true},
    {"tokens_per_second", "Tokens a second, all ranks together", "", true},
    {"samples_per_second", "Samples a second, all ranks together", "", true},
    {"tflops", "TFLOPS, all ranks together", "", true},
    {"hardware_tflops", "TFLOPS including recomputation, all ranks together", "", true},
    {"peak_memory_bytes", "Peak memory of a process, of the rank that needs the most", "bytes", true},
    {"mapped_file_bytes", "Mapped files in the memory of a process, of the rank with the most", "bytes", true},
    {"peak_device_memory_bytes", "Peak memory of tensors on a GPU, of the rank that needs the most", "bytes", true},
    {"pipeline_bubble", "Share of the step in which ranks of the pipeline wait", "", true},
    {"loss_scale", "Loss scale", "", false},
};

bool all_have(const std::vector<RunData>& runs, const char* key) {
  return std::all_of(runs.begin(), runs.end(), [&](const RunData& run) { return !series_of(run, key).empty(); });
}

void add_curve(Plot& plot, size_t run, Series series, bool as_dots) {
  if (!series.empty()) plot.curves.push_back({run, as_dots, std::move(series)});
}

bool is_drawn(double value) { return std::isfinite(value) && std::abs(value) <= kLargestDrawn; }

// Rounds to seven digits, more than a plot shows.
nlohmann::ordered_json drawn(double value) {
  if (!is_drawn(value)) return nullptr;
  char text[32];
  std::snprintf(text, sizeof(text), "%.7g", value);
  return std::strtod(text, nullptr);
}

// Returns the smallest and the largest value of each range of neighbors, the first and last value of the curve, and a
// value that cannot be drawn for each range that contains one.
std::vector<size_t> worth_drawing(const Series& series) {
  const size_t count = series.steps.size();
  std::vector<size_t> kept;
  const size_t stretches = kMostPoints / 2;
  for (size_t i = 0; i < (count > kMostPoints ? stretches : 0); ++i) {
    const size_t begin = count * i / stretches, end = count * (i + 1) / stretches;
    size_t least = begin, greatest = begin;
    for (size_t j = begin; j < end; ++j) {
      if (!is_drawn(series.values[j])) {
        kept.push_back(j);
        break;
      }
      if (series.values[j] < series.values[least]) least = j;
      if (series.values[j] > series.values[greatest]) greatest = j;
    }
    kept.insert(kept.end(), {least, greatest});
  }
  if (count <= kMostPoints) {
    for (size_t i = 0; i < count; ++i) kept.push_back(i);
  } else {
    kept.insert(kept.end(), {0, count - 1});
  }
  std::sort(kept.begin(), kept.end());
  kept.erase(std::unique(kept.begin(), kept.end()), kept.end());
  return kept;
}

std::string value_text(const Plot& plot, double value) {
  return plot.unit == "bytes" ? bytes_text(value) : number_text(value);
}

}  // namespace

std::vector<Plot> plots_of(const std::vector<RunData>& runs) {
  std::vector<Plot> plots;
  for (const Kind& kind : kKinds) {
    // Samples per second add no information if all runs count tokens.
    if (kind.key == std::string("samples_per_second") && all_have(runs, "tokens_per_second")) continue;
    Plot plot{kind.key, kind.title, kind.unit, kind.from_zero, {}};
    for (size_t i = 0; i < runs.size(); ++i) add_curve(plot, i, series_of(runs[i], kind.key), false);
    const bool is_loss = plot.id == "loss";
    for (size_t i = 0; i < (is_loss ? runs.size() : 0); ++i) add_curve(plot, i, series_of(runs[i], "eval_loss"), true);
    if (!plot.curves.empty()) plots.push_back(std::move(plot));
  }
  return plots;
}

std::string plot_summary(const Plot& plot, const std::vector<RunData>& runs) {
  std::string text = plot.title + ".";
  for (const Curve& curve : plot.curves) {
    const Series& series = curve.series;
    double least = std::nan(""), greatest = std::nan("");
    for (const double value : series.values) {
      least = std::fmin(least, value);
      greatest = std::fmax(greatest, value);
    }
    text += " " + runs[curve.run].name + (curve.as_dots ? ", evaluation" : "") + ": " +
            value_text(plot, series.values.front()) + " at step " + std::to_string(series.steps.front());
    if (series.steps.size() == 1) {
      text += '.';
      continue;
    }
    text += ", " + value_text(plot, series.values.back()) + " at step " + std::to_string(series.steps.back()) +
            ", between " + value_text(plot, least) + " and " + value_text(plot, greatest) + ".";
  }
  return text;
}

nlohmann::ordered_json plot_json(const Plot& plot) {
  nlohmann::ordered_json json = {{"id", plot.id}, {"unit", plot.unit}, {"from_zero", plot.from_zero}};
  json["curves"] = nlohmann::ordered_json::array();
  for (const Curve& curve : plot.curves) {
    nlohmann::ordered_json steps = nlohmann::ordered_json::array(), values = nlohmann::ordered_json::array();
    for (const size_t i : worth_drawing(curve.series)) {
      steps.push_back(curve.series.steps[i]);
      values.push_back(drawn(curve.series.values[i]));
    }
    json["curves"].push_back(
        {{"run", curve.run}, {"as_dots", curve.as_dots}, {"steps", std::move(steps)}, {"values", std::move(values)}});
  }
  return json;
}

}  // namespace fsdp::trainer
