#include "planner/calibration/host_fit.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <string>
#include <tuple>
#include <utility>

namespace fsdp::planner {
namespace {

// The seconds of calls with similar bytes.
struct Calls {
  std::vector<double> bytes;
  std::vector<double> seconds;
};
using CallsBySize = std::map<int, Calls>;

// Half a doubling each; calls without bytes come first.
int size_class(int64_t bytes) { return bytes <= 0 ? -1 : static_cast<int>(std::lround(2 * std::log2(bytes))); }

void add_call(CallsBySize& sizes, const OperatorSample& sample) {
  Calls& calls = sizes[size_class(sample.bytes)];
  calls.bytes.push_back(static_cast<double>(sample.bytes));
  calls.seconds.push_back(sample.seconds);
}

TimeCurve curve_through(const CallsBySize& sizes) {
  TimeCurve curve;
  for (const auto& [size, calls] : sizes) {
    curve.push_back({.bytes = std::round(usual_mean(calls.bytes)), .seconds = usual_mean(calls.seconds)});
  }
  return curve;
}

auto key_of(const ProductWork& work) {
  return std::tuple(work.type, work.dtype, work.across_rows, work.causal, work.batch, work.m, work.n, work.k,
                    work.flops);
}

void fit_products(const std::vector<OperatorSample>& samples, HostSpeed& speed) {
  std::map<decltype(key_of({})), std::pair<ProductWork, std::vector<double>>> products;
  for (const OperatorSample& sample : samples) {
    if (!sample.work || sample.work->flops <= 0) continue;
    auto& [work, seconds] = products[key_of(*sample.work)];
    work = *sample.work;
    seconds.push_back(sample.seconds);
  }
  for (const auto& [key, product] : products) {
    speed.products.push_back({.work = product.first, .seconds = usual_mean(product.second)});
  }
}

// Both minimize the sum of the squares of the errors, as parts of the steps, for given values of the other.

double host_that_fits(const std::vector<ExplainedStep>& steps, const std::map<at::ScalarType, double>& scales) {
  double products = 0, squares = 0;
  for (const ExplainedStep& step : steps) {
    const double count = step.count / step.seconds;
    products += count * (1 - scales.at(step.dtype) * step.operators / step.seconds);
    squares += count * count;
  }
  return squares > 0 ? std::max(0.0, products / squares) : 0;
}

double scale_that_fits(const std::vector<ExplainedStep>& steps, at::ScalarType dtype, double host) {
  constexpr double kLeast = 0.5, kMost = 2;
  double products = 0, squares = 0;
  for (const ExplainedStep& step : steps) {
    if (step.dtype != dtype) continue;
    const double operators = step.operators / step.seconds;
    products += operators * (1 - host * step.count / step.seconds);
    squares += operators * operators;
  }
  return squares > 0 ? std::clamp(products / squares, kLeast, kMost) : 1;
}

}  // namespace

double usual_mean(std::vector<double> values) {
  TORCH_INTERNAL_ASSERT(!values.empty());
  constexpr double kHeldUp = 3;  // times the median
  std::sort(values.begin(), values.end());
  const auto end = std::upper_bound(values.begin(), values.end(), kHeldUp * values[values.size() / 2]);
  return std::accumulate(values.begin(), end, 0.0) / static_cast<double>(end - values.begin());
}

StepFit fit_steps(const std::vector<ExplainedStep>& steps) {
  constexpr int kRounds = 20000;  // each makes the errors smaller by a factor
  StepFit fit;
  for (const ExplainedStep& step : steps) fit.scales[step.dtype] = 1;
  for (int round = 0; round < kRounds; ++round) {
    fit.host_per_operator = host_that_fits(steps, fit.scales);
    for (auto& [dtype, scale] : fit.scales) scale = scale_that_fits(steps, dtype, fit.host_per_operator);
  }
  return fit;
}

void fit_operators(const std::vector<OperatorSample>& samples, at::ScalarType dtype, HostSpeed& speed) {
  std::map<std::string, CallsBySize> operators;
  CallsBySize others;
  for (const OperatorSample& sample : samples) {
    if (sample.work) continue;
    add_call(operators[sample.name], sample);
    add_call(others, sample);
  }
  for (const auto& [name, sizes] : operators) {
    speed.operators.push_back({.name = name, .dtype = dtype, .points = curve_through(sizes)});
  }
  speed.operators.push_back({.name = kOtherOperators, .dtype = dtype, .points = curve_through(others)});
  fit_products(samples, speed);
}

}  // namespace fsdp::planner
