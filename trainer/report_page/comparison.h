// The tables of a report: what each run came to, and how runs differ.
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

// A column for each run; behind a number of a later run, in brackets, its ratio to that of the first one.
Table summary_table(const std::vector<RunData>& runs);

// The keys of the configs whose values are not the same in all runs; paths of outputs are left out.
Table config_differences(const std::vector<RunData>& runs);

// For each later run, at which step that both have logged its loss is another than the first run's.
std::vector<std::string> first_loss_differences(const std::vector<RunData>& runs);

// What each rank did during the step, and how much memory of each category it held at most.
Table step_table(const StepTimeline& step);
Table memory_table(const StepTimeline& step);

// The middle one of the finite values; NaN of none.
double median(std::vector<double> values);

}  // namespace fsdp::trainer
