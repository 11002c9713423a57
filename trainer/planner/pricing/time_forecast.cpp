#include "planner/pricing/time_forecast.h"

#include <c10/util/Exception.h>

#include <map>
#include <tuple>

#include "planner/pricing/collective_price.h"
#include "planner/pricing/host_price.h"
#include "planner/time/spread.h"

namespace fsdp::planner {
namespace {

double begin_of_phase(const TimeForecast& forecast, size_t mark) {
  return forecast.result.items.at(forecast.priced.phase_marks.at(mark).item).end;
}

// The phases of the last step follow one another without gaps; the first one begins with the step.
PhaseTime phases_of_last_step(const TimeForecast& forecast) {
  const std::vector<PhaseMark>& marks = forecast.priced.phase_marks;
  const auto last = static_cast<int>(forecast.steps.size()) - 1;
  PhaseTime time;
  for (size_t i = 0; i < marks.size(); ++i) {
    if (marks[i].step != last) continue;
    const bool is_last = i + 1 == marks.size();
    const double end =
        is_last ? forecast.result.items.at(forecast.priced.step_marks.back()).end : begin_of_phase(forecast, i + 1);
    double& seconds = marks[i].phase == StepPhase::kBackward ? time.backward
                      : marks[i].phase == StepPhase::kUpdate ? time.update
                                                             : time.forward;
    seconds += end - begin_of_phase(forecast, i);
  }
  return time;
}

// Bytes that each rank sends in a ring (bus_factor, in whole numbers).
int64_t bytes_sent(CollectiveFunction function, int64_t bytes, int ranks) {
  const int64_t part = bytes / ranks * (ranks - 1);
  if (function == CollectiveFunction::kBroadcast) return ranks > 1 ? bytes : 0;
  return function == CollectiveFunction::kAllReduce ? 2 * part : part;
}

std::vector<CollectiveSum> collectives_of_last_step(const Tape& tape, const Cluster& cluster, const Stack& stack,
                                                    const TimeForecast& forecast) {
  using Key = std::tuple<comm::CollectiveKind, int, int, int>;
  std::map<Key, CollectiveSum> sums;
  const PricedTape& priced = forecast.priced;
  const size_t steps = priced.step_marks.size();
  for (size_t i = priced.step_marks.at(steps - 2); i < priced.step_marks.back(); ++i) {
    if (priced.replay.items[i].kind != ReplayKind::kCollective) continue;
    const auto index = static_cast<size_t>(priced.replay.items[i].flow);
    const TapeCollective& collective = tape.collectives()[index];
    if (collective.meeting.role == MeetingRole::kReceives) continue;  // counts for the sender
    const Topology topology = topology_of(tape, collective, cluster);
    if (topology.ranks == 1 || collective.numel == 0 || collective.kind == comm::CollectiveKind::kGatherBytes) continue;
    CollectiveSum& sum = sums[{collective.kind, topology.ranks, topology.nodes, topology.groups_per_node}];
    const int64_t bytes = collective_bytes(collective, stack);
    sum.kind = collective.kind;
    sum.topology = topology;
    ++sum.count;
    sum.bytes += bytes;
    sum.sent += bytes_sent(function_of(collective.kind), bytes, topology.ranks);
    sum.seconds += forecast.result.items[i].end - forecast.result.items[i].begin;
    sum.alone += cluster.device ? price_collective(tape, index, cluster, stack).seconds()
                                : exchange_seconds(tape, index, *cluster.host_speed);
  }
  std::vector<CollectiveSum> list;
  for (const auto& [key, sum] : sums) list.push_back(sum);
  return list;
}

double least_of_last_step(const PricedTape& priced) {
  double least = 0;
  for (size_t i = priced.step_marks.at(priced.step_marks.size() - 2); i < priced.step_marks.back(); ++i) {
    if (priced.replay.items[i].stream == kComputeStream) least += priced.least[i];
  }
  return least;
}

}  // namespace

TimeForecast forecast_time(const Tape& tape, const std::vector<size_t>& step_bounds, const Cluster& cluster,
                           const std::vector<AllocatorRetry>& retries, const KernelOptions& options,
                           const std::function<ReplayResult(const Replay&)>& replay) {
  TORCH_CHECK(step_bounds.size() >= 2, "fsdp plan: a plan of no steps has no time");
  TimeForecast forecast;
  forecast.priced = price_tape(tape, step_bounds, cluster, retries, options);
  const PricedTape& priced = forecast.priced;
  forecast.result = replay(priced.replay);
  const double spread = cluster.spread * mean_largest_normal(cluster.ranks());
  for (size_t step = 0; step + 1 < priced.step_marks.size(); ++step) {
    forecast.steps.push_back(step_time(priced.replay, forecast.result, priced.kinds,
                                       {priced.step_marks[step], priced.step_marks[step + 1]}, spread));
  }
  forecast.phases = phases_of_last_step(forecast);
  forecast.collectives = collectives_of_last_step(tape, cluster, options.stack, forecast);
  forecast.least = least_of_last_step(priced);
  return forecast;
}

}  // namespace fsdp::planner
