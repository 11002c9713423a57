// The plots over the steps of training.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "report_page/run_data.h"

namespace fsdp::trainer {

struct Curve {
  size_t run = 0;        // index of the run
  bool as_dots = false;  // separate values, such as evaluations
  Series series = {};
};

struct Plot {
  std::string id;  // "loss"
  std::string title;
  std::string unit;           // "bytes" or empty
  bool from_zero = false;     // whether the value axis begins at 0
  std::vector<Curve> curves;  // of the runs that logged it
};

// Returns the plots for which any run has logged values, in the order of the page.
std::vector<Plot> plots_of(const std::vector<RunData>& runs);

// Describes a plot for readers who cannot see it: the first and the last value and the range of each curve.
std::string plot_summary(const Plot& plot, const std::vector<RunData>& runs);

// Returns the data of a plot for the script that draws it. Curves with too many values lose some: each omitted value
// lies between the smallest and the largest of its neighbors. Values that cannot be drawn (not finite, or beyond 1e30)
// are null.
nlohmann::ordered_json plot_json(const Plot& plot);

}  // namespace fsdp::trainer
