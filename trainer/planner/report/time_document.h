// The time of a plan as JSON.
#pragma once

#include <c10/core/ScalarType.h>

#include <nlohmann/json.hpp>

#include "planner/pricing/time_forecast.h"
#include "planner/target/cluster.h"
#include "tasks/trained_model.h"

namespace fsdp::planner {

// The work of one optimizer step.
struct StepWork {
  int64_t samples = 0;     // of one rank
  int64_t data_ranks = 1;  // ranks that take different samples
  trainer::SampleWork sample;
  at::ScalarType dtype = at::kFloat;  // of the computation
  bool recomputes = false;
};

// Returns the parts of the last step's time in seconds, its throughput, its FLOP/s, its collectives, the three steps,
// and "marks", which say of each figure whether it is exact or modelled.
nlohmann::ordered_json time_document(const TimeForecast& forecast, const StepWork& work, const Cluster& cluster);

}  // namespace fsdp::planner
