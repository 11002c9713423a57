#include "planner/report/time_document.h"

#include <algorithm>
#include <optional>

#include "planner/pricing/kernel_price.h"

namespace fsdp::planner {
namespace {

using nlohmann::ordered_json;

ordered_json parts_of(const StepTime& step) {
  return {{"step_seconds", step.seconds()},
          {"compute_seconds", step.compute},
          {"exposed_communication_seconds", step.exposed},
          {"host_bound_seconds", step.host_bound},
          {"spread_seconds", step.spread},
          {"idle_seconds", step.idle}};
}

ordered_json kinds_of(const StepTime& step) {
  ordered_json kinds = ordered_json::object();
  for (size_t kind = 0; kind < kWorkKinds; ++kind) {
    if (step.by_kind[kind] > 0) kinds[to_string(static_cast<WorkKind>(kind))] = step.by_kind[kind];
  }
  return kinds;
}

// Rates of all ranks, and of each device.
struct StepRates {
  double samples = 0;
  double tflops = 0;
  double hardware_tflops = 0;      // with what is computed again
  std::optional<double> mfu = {};  // none: the peak rate of CPUs is not known
};

StepRates rates(double seconds, const StepWork& work, const Cluster& cluster) {
  StepRates rates;
  rates.samples = static_cast<double>(work.samples * work.data_ranks) / seconds;
  const double of_device = rates.samples / cluster.ranks();
  rates.tflops = of_device * work.sample.flops * 1e-12;
  rates.hardware_tflops = of_device * (work.sample.flops + work.sample.recomputed_flops) * 1e-12;
  if (cluster.device) rates.mfu = rates.tflops * 1e12 / cluster.speed.peak(precision_of(work.dtype));
  return rates;
}

void add_rates(ordered_json& document, double seconds, const StepWork& work, const Cluster& cluster) {
  const StepRates step = rates(seconds, work, cluster);
  const auto tokens = static_cast<double>(work.sample.tokens);
  if (tokens > 0) {
    document["tokens_per_second"] = step.samples * tokens;
    document["tokens_per_second_per_device"] = step.samples * tokens / cluster.ranks();
  } else {
    document["samples_per_second"] = step.samples;
    document["samples_per_second_per_device"] = step.samples / cluster.ranks();
  }
  document["tflops_per_device"] = step.tflops;
  if (work.recomputes) document["hardware_tflops_per_device"] = step.hardware_tflops;
  if (step.mfu) document["mfu"] = *step.mfu;
  document["model_flops_per_device"] =
      static_cast<double>(work.samples * work.data_ranks) * work.sample.flops / cluster.ranks();
}

ordered_json collective_entry(const CollectiveSum& sum) {
  return {{"kind", comm::to_string(sum.kind)},
          {"ranks", sum.topology.ranks},
          {"hosts", sum.topology.nodes},
          {"count", sum.count},
          {"bytes", sum.bytes},
          {"sent_bytes", sum.sent},
          {"seconds", sum.seconds},
          {"seconds_alone", sum.alone}};
}

void add_collectives(ordered_json& document, const std::vector<CollectiveSum>& collectives) {
  double seconds = 0;
  int64_t sent = 0;
  document["collectives"] = ordered_json::array();
  for (const CollectiveSum& sum : collectives) {
    document["collectives"].push_back(collective_entry(sum));
    seconds += sum.seconds;
    sent += sum.sent;
  }
  document["communication_seconds"] = seconds;
  document["communication_volume_bytes"] = sent;
}

// Times of a cluster some of whose numbers were chosen so that plans agree with whole runs are calibrated.
const char* mark_of_times(const Cluster& cluster) {
  const bool calibrated = std::any_of(cluster.provenances.begin(), cluster.provenances.end(),
                                      [](const auto& one) { return one.second == Provenance::kCalibrated; });
  return calibrated ? "calibrated" : "modelled";
}

// Figures that follow from the schedule alone are exact. A bound holds whatever the speeds that a device reaches.
ordered_json marks_of(const ordered_json& document, double least, const StepWork& work, const Cluster& cluster) {
  const char* const times = mark_of_times(cluster);
  ordered_json marks = ordered_json::object();
  for (const auto& [figure, value] : document.items()) {
    const bool exact = figure == "communication_volume_bytes" || figure == "model_flops_per_device";
    marks[figure] = {{"mark", exact ? "exact" : times}};
  }
  marks["collectives"] = {{"mark", times}, {"count", "exact"}, {"bytes", "exact"}, {"sent_bytes", "exact"}};
  marks["exposed_communication_seconds"]["at_least"] = 0;
  if (least <= 0) return marks;
  marks["step_seconds"]["at_least"] = least;
  ordered_json most;
  add_rates(most, least, work, cluster);
  for (const char* figure :
       {"tokens_per_second", "tokens_per_second_per_device", "samples_per_second", "samples_per_second_per_device",
        "tflops_per_device", "hardware_tflops_per_device", "mfu"}) {
    if (document.contains(figure)) marks[figure]["at_most"] = most.at(figure);
  }
  return marks;
}

}  // namespace

ordered_json time_document(const TimeForecast& forecast, const StepWork& work, const Cluster& cluster) {
  const StepTime& steady = forecast.steps.back();
  ordered_json document = parts_of(steady);
  document["by_kind"] = kinds_of(steady);
  document["forward_seconds"] = forecast.phases.forward;
  document["backward_seconds"] = forecast.phases.backward;
  document["update_seconds"] = forecast.phases.update;
  add_rates(document, steady.seconds(), work, cluster);
  add_collectives(document, forecast.collectives);
  document["steps"] = ordered_json::array();
  for (const StepTime& step : forecast.steps) document["steps"].push_back(parts_of(step));
  document["marks"] = marks_of(document, forecast.least, work, cluster);
  return document;
}

}  // namespace fsdp::planner
