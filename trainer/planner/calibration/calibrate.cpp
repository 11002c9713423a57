#include "planner/calibration/calibrate.h"

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "comm/gloo/gloo_communicator.h"
#include "comm/meeting/meeting_point.h"
#include "fsdp/memory_sharing.h"
#include "planner/calibration/calibration_models.h"
#include "planner/calibration/exchange_times.h"
#include "planner/calibration/host_fit.h"
#include "planner/calibration/measured_run.h"
#include "planner/pricing/host_price.h"
#include "planner/run/plan.h"
#include "planner/target/cluster_keys.h"
#include "planner/time/spread.h"
#include "report_page/comparison.h"

namespace fsdp::planner {
namespace {

using trainer::median;

// The measured steps of one model.
struct TimedModel {
  at::ScalarType dtype = at::kFloat;
  MeasuredRun run;
};

double priced(const OperatorSample& sample, at::ScalarType dtype, const HostSpeed& speed) {
  return sample.work ? seconds_of(*sample.work, speed) : seconds_of(sample.name, sample.bytes, dtype, speed);
}

ExplainedStep explained(const TimedModel& model, const HostSpeed& speed) {
  const std::vector<OperatorSample>& operators = model.run.operators.front();
  ExplainedStep step{.dtype = model.dtype, .seconds = median(model.run.seconds)};
  step.count = static_cast<double>(operators.size());
  for (const OperatorSample& sample : operators) step.operators += priced(sample, model.dtype, speed);
  return step;
}

class HostMeasurement {
 public:
  HostMeasurement(std::shared_ptr<Communicator> world, const CalibrationOptions& options)
      : world_(std::move(world)), options_(options) {
    cluster_.ranks_per_host = world_->size();
    cluster_.host_memory = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
    cluster_.host_speed.emplace().threads = at::get_num_threads();
  }

  Calibration measure() {
    time_models();
    for (int ranks = 2; ranks <= world_->size(); ++ranks) {
      if (world_->size() % ranks == 0) time_exchanges(ranks);
    }
    for (const ClusterKey& key : cluster_keys()) {
      if (key.usual && is_of(key, cluster_)) cluster_.provenances[key.path] = Provenance::kMeasured;
    }
    // Fitted to whole steps, and in fitted_spread() to runs of all ranks.
    for (const char* path : {"cpu.operators", "cpu.products", "host_per_kernel"}) {
      cluster_.provenances[path] = Provenance::kCalibrated;
    }
    if (world_->size() > 1) cluster_.provenances["spread"] = Provenance::kCalibrated;
    return {.cluster = std::move(cluster_), .sharded = std::move(sharded_)};
  }

 private:
  void begin(const std::string& part) const {
    if (options_.progress) options_.progress(part);
  }
  void time_models();
  void fit_to_steps(const std::vector<TimedModel>& models);
  void time_exchanges(int ranks);
  size_t sharded_runs() const { return world_->size() > 1 ? options_.sharded.size() : 0; }
  void time_sharded_run();

  std::shared_ptr<Communicator> world_;
  const CalibrationOptions& options_;
  Cluster cluster_;
  std::vector<double> sharded_;
};

// Models and sharded runs take turns, so that a machine that is slow for a while is so for both.
void HostMeasurement::time_models() {
  const size_t count = std::accumulate(options_.runs.begin(), options_.runs.end(), size_t{0},
                                       [](size_t sum, const auto& runs) { return sum + runs.configs.size(); });
  const auto alone = world_->subgroup({world_->rank()}, {"calibration", 0, Pass::kSetup});
  std::vector<TimedModel> models;
  for (const CalibrationRuns& runs : options_.runs) {
    std::vector<OperatorSample> samples;
    for (const trainer::Config& config : runs.configs) {
      begin(c10::str("model ", models.size() + 1, " of ", count));
      MeasuredRun run = measure_run(
          config, {.world = world_, .group = alone, .steps = options_.steps, .observed_steps = options_.steps});
      for (const auto& step : run.operators) samples.insert(samples.end(), step.begin(), step.end());
      models.push_back({.dtype = runs.dtype, .run = std::move(run)});
      while (sharded_.size() * count < models.size() * sharded_runs()) time_sharded_run();
    }
    fit_operators(samples, runs.dtype, *cluster_.host_speed);
  }
  fit_to_steps(models);
}

// Makes the prices of operators add up to the steps that were measured.
void HostMeasurement::fit_to_steps(const std::vector<TimedModel>& models) {
  HostSpeed& speed = *cluster_.host_speed;
  std::vector<ExplainedStep> steps;
  for (const TimedModel& model : models) steps.push_back(explained(model, speed));
  const StepFit fit = fit_steps(steps);
  for (OperatorCurve& curve : speed.operators) {
    for (TimePoint& point : curve.points) point.seconds *= fit.scales.at(curve.dtype);
  }
  for (TimedProduct& product : speed.products) {
    const auto scale = fit.scales.find(product.work.dtype);
    if (scale != fit.scales.end()) product.seconds *= scale->second;
  }
  cluster_.host_per_kernel = fit.host_per_operator;
  cluster_.spread = 0;
}

// All groups of neighbouring ranks are busy at the same time, as those of a mesh are.
void HostMeasurement::time_exchanges(int ranks) {
  begin(c10::str("collectives of ", ranks, " ranks"));
  std::vector<int> members(static_cast<size_t>(ranks));
  std::iota(members.begin(), members.end(), world_->rank() / ranks * ranks);
  const auto add = [&](const std::shared_ptr<Communicator>& group) {
    for (ExchangeCurve& curve : measure_exchanges(*world_, group, options_.sizes)) {
      cluster_.host_speed->exchanges.push_back(std::move(curve));
    }
  };
  const CollectiveId id{"calibration", static_cast<uint64_t>(ranks), Pass::kSetup};
  const auto shared = world_->subgroup(members, id);
  if (shared->memory_sharing().reads_in_place()) add(shared);
  const auto name = c10::str("calibration of ", ranks, " ranks from ", members.front());
  add(comm::make_host_communicator(comm::inner_meeting_point(*world_->meeting_point(), name), world_->rank() % ranks,
                                   ranks, {.timeout = world_->timeout()}));
}

void HostMeasurement::time_sharded_run() {
  const trainer::Config& config = options_.sharded.at(sharded_.size());
  begin(c10::str("sharded run ", sharded_.size() + 1, " of ", options_.sharded.size()));
  const MeasuredRun run = measure_run(config, {.world = world_, .group = world_, .steps = options_.steps});
  sharded_.push_back(median(run.seconds));
}

}  // namespace

CalibrationOptions usual_calibration() {
  CalibrationOptions options;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    options.runs.push_back({.dtype = dtype, .configs = calibration_runs(dtype)});
  }
  for (const int shift : {8, 12, 16, 20, 23, 26}) options.sizes.push_back(int64_t{1} << shift);
  options.sharded = sharded_calibration_runs();
  return options;
}

Calibration calibrate(const std::shared_ptr<Communicator>& world, const CalibrationOptions& options) {
  return HostMeasurement(world, options).measure();
}

double fitted_spread(const Calibration& calibration, const std::vector<trainer::Config>& sharded) {
  constexpr double kMost = 0.5;
  if (calibration.sharded.empty()) return 0;
  std::vector<double> spreads;
  for (const Answer& answer : plan_all(sharded, {.cluster = calibration.cluster}, 1)) {
    TORCH_CHECK(answer.failure.empty() && answer.refusal.empty(), "the plan of sharded run ", spreads.size() + 1,
                " failed: ", answer.failure.empty() ? answer.refusal : answer.failure);
    const nlohmann::ordered_json& time = answer.result.at("time");
    const double late = calibration.sharded.at(spreads.size()) - time.at("step_seconds").get<double>();
    spreads.push_back(late / time.at("compute_seconds").get<double>() /
                      mean_largest_normal(calibration.cluster.ranks()));
  }
  return std::clamp(median(spreads), 0.0, kMost);
}

}  // namespace fsdp::planner
