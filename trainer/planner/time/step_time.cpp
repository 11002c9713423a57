#include "planner/time/step_time.h"

namespace fsdp::planner {

const char* to_string(WorkKind kind) {
  constexpr std::array kNames = {"matrix products", "attention", "memory-bound", "copies", "optimizer"};
  static_assert(kNames.size() == kWorkKinds);
  return kNames.at(static_cast<size_t>(kind));
}

StepTime step_time(const Replay& replay, const ReplayResult& result, const std::vector<WorkKind>& kinds,
                   const StepInterval& step, double spread) {
  const int stream = replay.items.at(step.first).stream;
  const StreamUse use = use_between(result.streams.at(static_cast<size_t>(stream)), result.items.at(step.first).end,
                                    result.items.at(step.last).end);
  StepTime time{.exposed = use.exposed, .host_bound = use.host_bound, .idle = use.idle};
  double collectives = 0;
  for (size_t i = step.first; i < step.last; ++i) {
    const ReplayItem& item = replay.items[i];
    if (item.stream != stream) continue;
    const double seconds = result.items[i].end - result.items[i].begin;
    if (item.kind == ReplayKind::kCollective) collectives += seconds;
    if (item.kind == ReplayKind::kKernel) time.by_kind.at(static_cast<size_t>(kinds.at(i))) += seconds;
  }
  time.exposed += collectives;
  time.compute = use.busy - collectives;
  time.spread = time.compute * spread;
  return time;
}

}  // namespace fsdp::planner
