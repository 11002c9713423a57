// The tables of a report: the results of each run, and the differences between runs.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "report_page/run_data.h"

namespace fsdp::trainer {

struct Table {
  std::vector<std::string> columns;                                    // the first one heads the rows' names
  std::vector<std::pair<std::string, std::vector<std::string>>> rows;  // a row's name, and its other cells
};

// Returns a table with a column for each run. In the columns of later runs, each number is followed by its ratio to the
// first run's number, in brackets.
Table summary_table(const std::vector<RunData>& runs);

// Returns the config keys whose values differ between runs, without the paths of outputs.
Table config_differences(const std::vector<RunData>& runs);

// Returns a text for each later run: the first common step at which its loss differs from the first run's, that no loss
// differs, or that the runs have no step in common.
std::vector<std::string> first_loss_differences(const std::vector<RunData>& runs);

// Return the activity of each rank during the step, and the peak memory of each category.
Table step_table(const StepTimeline& step);
Table memory_table(const StepTimeline& step);

// Returns the median of the finite values (the mean of the middle two if their number is even), or NaN if there are
// none.
double median(std::vector<double> values);

}  // namespace fsdp::trainer
