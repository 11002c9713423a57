// Schedules of tests, written as CSV.
#pragma once

#include <sstream>
#include <string>

#include "fsdp/pipeline_schedule.h"

namespace fsdp::testing {

inline PipelineSchedule schedule_of(const std::string& csv) {
  std::istringstream stream(csv);
  return read_pipeline_csv(stream, "test.csv");
}

inline std::string csv_of(const PipelineSchedule& schedule) {
  std::ostringstream stream;
  write_pipeline_csv(stream, schedule);
  return stream.str();
}

}  // namespace fsdp::testing
