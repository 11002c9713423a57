// The plots over the steps of training.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "report_page/run_data.h"

namespace fsdp::trainer {

struct Curve {
  size_t run = 0;        // which of the runs
  bool as_dots = false;  // single values, such as those of evaluations
  Series series = {};
};

struct Plot {
  std::string id;  // "loss"
  std::string title;
  std::string unit;           // "bytes", or nothing
  bool from_zero = false;     // whether its axis begins at 0
  std::vector<Curve> curves;  // of the runs that have logged it
};

// Those that any run has logged, in the order of the page.
std::vector<Plot> plots_of(const std::vector<RunData>& runs);

// For whom the plot cannot be seen: where each curve begins and ends, and between what it lies.
std::string plot_summary(const Plot& plot, const std::vector<RunData>& runs);

// For the script that draws it. Curves with more values than are worth drawing lose some: what is left out lies between
// the least and the greatest of its neighbours. Values that cannot be drawn (no finite numbers, or beyond 1e30) are
// null.
nlohmann::ordered_json plot_json(const Plot& plot);

}  // namespace fsdp::trainer
