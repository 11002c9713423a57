// Curves and rates from measured operators.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "planner/calibration/operator_times.h"
#include "planner/target/host_speed.h"

namespace fsdp::planner {

// Returns the mean of all values up to three times the median. A step takes the sum of all calls, so that slow ones
// count, but not those of a rank that was held up.
double usual_mean(std::vector<double> values);

// A step as its operators explain it.
struct ExplainedStep {
  at::ScalarType dtype = at::kFloat;  // in which the model computes
  double seconds = 0;                 // measured
  double operators = 0;               // the sum of the prices of its operators
  double count = 0;                   // of operators
};

// Prices of operators are too low by a part that differs by dtype: calls that were held up do not count in curves, but
// do in steps. All else that a step takes is proportional to the number of its operators.
struct StepFit {
  std::map<at::ScalarType, double> scales;  // by which prices of operators are multiplied
  double host_per_operator = 0;             // seconds; not negative
};

// Returns the fit with the least sum of squared relative errors whose scales lie between 0.5 and 2. Begins with scales
// of 1, so that a single step changes the host's time alone.
StepFit fit_steps(const std::vector<ExplainedStep>& steps);

// Adds the curves of operators and the products of models that computed in `dtype`. A curve has a point for each factor
// of 1.4 of bytes at which its operator ran.
void fit_operators(const std::vector<OperatorSample>& samples, at::ScalarType dtype, HostSpeed& speed);

}  // namespace fsdp::planner
