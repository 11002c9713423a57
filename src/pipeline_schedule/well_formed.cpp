#include "pipeline_schedule/well_formed.h"

#include <c10/util/Exception.h>

#include "pipeline_schedule/standstill.h"

namespace fsdp::pipeline_schedule {
namespace {

void check_action(const PipelineSchedule& schedule, int rank, size_t index) {
  const PipelineAction& action = schedule.of_rank[static_cast<size_t>(rank)][index];
  const auto place = [&] { return place_of(schedule, rank, index); };
  TORCH_CHECK(action.stage >= 0 && action.stage < schedule.stages(), place(), ": there are ", schedule.stages(),
              " stages, from 0");
  const int holder = schedule.rank_of_stage[static_cast<size_t>(action.stage)];
  TORCH_CHECK(holder == rank, place(), ": stage ", action.stage, " is on rank ", holder);
  TORCH_CHECK(action.micro_batch.has_value() == has_micro_batch(action.kind), place(), ": an action of this kind has ",
              has_micro_batch(action.kind) ? "a micro-batch" : "no micro-batch");
  if (!action.micro_batch) return;
  TORCH_CHECK(*action.micro_batch >= 0 && *action.micro_batch < schedule.micro_batches, place(), ": there are ",
              schedule.micro_batches, " micro-batches, from 0");
}

}  // namespace

void check_well_formed(const PipelineSchedule& schedule) {
  TORCH_CHECK(schedule.micro_batches > 0, "a pipeline schedule needs at least 1 micro-batch, not ",
              schedule.micro_batches);
  for (int stage = 0; stage < schedule.stages(); ++stage) {
    const int rank = schedule.rank_of_stage[static_cast<size_t>(stage)];
    TORCH_CHECK(rank >= 0 && rank < schedule.ranks(), "stage ", stage, " is on rank ", rank, ", of ", schedule.ranks(),
                " ranks");
  }
  for (int rank = 0; rank < schedule.ranks(); ++rank) {
    for (size_t i = 0; i < schedule.of_rank[static_cast<size_t>(rank)].size(); ++i) check_action(schedule, rank, i);
  }
}

}  // namespace fsdp::pipeline_schedule
