#include <c10/util/Exception.h>

#include <algorithm>
#include <map>

#include "pipeline_schedule/messages.h"

namespace fsdp {
namespace {

using pipeline_schedule::Message;
using Kind = PipelineActionKind;

double duration(Kind kind, const StageCosts& costs) {
  if (kind == Kind::kForward) return costs.forward;
  if (kind == Kind::kInputGradient) return costs.input_gradient;
  if (kind == Kind::kWeightGradient) return costs.weight_gradient;
  return costs.input_gradient + costs.weight_gradient;
}

// Of a schedule that is known to run to its end.
class Simulator {
 public:
  Simulator(const PipelineSchedule& schedule, const std::vector<StageCosts>& costs)
      : schedule_(schedule), costs_(costs), next_(schedule.of_rank.size()), passes_(schedule.of_rank.size()) {}

  PipelineSimulation run() {
    bool moved = true;
    while (moved) {
      moved = false;
      for (size_t rank = 0; rank < next_.size(); ++rank) {
        while (take_next(rank)) moved = true;
      }
    }
    return summary();
  }

 private:
  bool take_next(size_t rank) {
    if (next_[rank] == schedule_.of_rank[rank].size()) return false;
    const PipelineAction& action = schedule_.of_rank[rank][next_[rank]];
    if (computes(action.kind) && !run_pass(action, rank)) return false;
    ++next_[rank];
    return true;
  }

  bool run_pass(const PipelineAction& action, size_t rank) {
    double begin = passes_[rank].empty() ? 0 : passes_[rank].back().end;
    if (const auto needed = pipeline_schedule::needed_by(action, schedule_.stages())) {
      const auto arrival = arrivals_.find(*needed);
      if (arrival == arrivals_.end()) return false;
      begin = std::max(begin, arrival->second);
    }
    const StageCosts& costs = costs_[static_cast<size_t>(action.stage)];
    const double end = begin + duration(action.kind, costs);
    passes_[rank].push_back({action, begin, end});
    if (const auto made = pipeline_schedule::made_by(action, schedule_.stages())) {
      const auto receiver = static_cast<size_t>(schedule_.rank_of_stage[static_cast<size_t>(made->receiver())]);
      arrivals_[*made] = end + (receiver == rank ? 0 : costs.send);
    }
    return true;
  }

  PipelineSimulation summary() {
    PipelineSimulation result;
    double busy = 0;
    for (const auto& passes : passes_) {
      for (const SimulatedPass& pass : passes) {
        result.seconds = std::max(result.seconds, pass.end);
        busy += pass.end - pass.begin;
      }
    }
    if (result.seconds > 0) result.bubble = 1 - busy / (result.seconds * static_cast<double>(passes_.size()));
    result.of_rank = std::move(passes_);
    return result;
  }

  const PipelineSchedule& schedule_;
  const std::vector<StageCosts>& costs_;
  std::vector<size_t> next_;
  std::vector<std::vector<SimulatedPass>> passes_;
  std::map<Message, double> arrivals_;
};

}  // namespace

PipelineSimulation simulate_pipeline(const PipelineSchedule& schedule, const std::vector<StageCosts>& of_stage) {
  check_pipeline_schedule(schedule);
  TORCH_CHECK(static_cast<int>(of_stage.size()) == schedule.stages(), "a simulation needs the costs of each of the ",
              schedule.stages(), " stages, not of ", of_stage.size());
  return Simulator(schedule, of_stage).run();
}

}  // namespace fsdp
