#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cctype>

#include "pipeline_schedule/orders.h"

namespace fsdp {
namespace {

using pipeline_schedule::PipelineShape;

struct KnownSchedule {
  const char* name;
  std::vector<PipelineAction> (*order)(const PipelineShape& shape, int rank);
  int stages_per_rank;  // 0: any number
  bool in_rounds = false;
  bool in_v = false;
};

const std::vector<KnownSchedule>& known_schedules() {
  static const std::vector<KnownSchedule> known = {
      {.name = "GPipe", .order = pipeline_schedule::gpipe_order, .stages_per_rank = 1},
      {.name = "1F1B", .order = pipeline_schedule::one_forward_one_backward_order, .stages_per_rank = 1},
      {.name = "Interleaved1F1B",
       .order = pipeline_schedule::interleaved_order,
       .stages_per_rank = 0,
       .in_rounds = true},
      {.name = "InterleavedZeroBubble",
       .order = pipeline_schedule::interleaved_zero_bubble_order,
       .stages_per_rank = 0,
       .in_rounds = true},
      {.name = "ZBVZeroBubble", .order = pipeline_schedule::zero_bubble_v_order, .stages_per_rank = 2, .in_v = true},
  };
  return known;
}

bool equal_but_for_case(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](unsigned char x, unsigned char y) { return std::tolower(x) == std::tolower(y); });
}

// Returns null if there is none of this name.
const KnownSchedule* look_up(std::string_view name) {
  for (const KnownSchedule& known : known_schedules()) {
    if (equal_but_for_case(known.name, name)) return &known;
  }
  return nullptr;
}

const KnownSchedule& find_schedule(std::string_view name) {
  if (const KnownSchedule* known = look_up(name)) return *known;
  TORCH_CHECK(false, "unknown pipeline schedule \"", name, "\": expected one of ",
              c10::Join(", ", pipeline_schedule_names()));
}

void check_shape(const KnownSchedule& known, const PipelineShape& shape) {
  TORCH_CHECK(shape.ranks > 0, "a pipeline needs at least 1 rank, not ", shape.ranks);
  TORCH_CHECK(shape.micro_batches > 0, "a pipeline needs at least 1 micro-batch, not ", shape.micro_batches);
  const int stages = shape.stages_per_rank;
  if (known.stages_per_rank) {
    TORCH_CHECK(stages == known.stages_per_rank, "the pipeline schedule ", known.name, " takes ", known.stages_per_rank,
                known.stages_per_rank == 1 ? " stage" : " stages", " a rank, not ", stages);
  } else {
    TORCH_CHECK(stages >= 1, "the pipeline schedule ", known.name, " takes at least 1 stage a rank, not ", stages);
  }
  if (known.in_rounds) {
    TORCH_CHECK(shape.micro_batches % shape.rounds() == 0, "the pipeline schedule ", known.name,
                " sends micro-batches in rounds, micro_batches / ranks rounded down = ", shape.rounds(),
                " of them, which must divide their number: ", shape.micro_batches, " micro-batches over ", shape.ranks,
                " ranks do not fit, ", shape.micro_batches / shape.ranks * shape.ranks, " do");
  }
}

std::vector<int> place_stages(const KnownSchedule& known, const PipelineShape& shape) {
  std::vector<int> rank_of_stage;
  for (int stage = 0; stage < shape.ranks * shape.stages_per_rank; ++stage) {
    const bool upwards = known.in_v && stage >= shape.ranks;
    rank_of_stage.push_back(upwards ? 2 * shape.ranks - 1 - stage : stage % shape.ranks);
  }
  return rank_of_stage;
}

}  // namespace

const std::vector<std::string>& pipeline_schedule_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const KnownSchedule& known : known_schedules()) all.emplace_back(known.name);
    return all;
  }();
  return names;
}

std::vector<int> PipelineSchedule::stages_of(int rank) const {
  std::vector<int> held;
  for (int stage = 0; stage < stages(); ++stage) {
    if (rank_of_stage[static_cast<size_t>(stage)] == rank) held.push_back(stage);
  }
  return held;
}

std::optional<int> stages_per_rank_of(std::string_view name) {
  const int stages = find_schedule(name).stages_per_rank;
  return stages > 0 ? std::optional(stages) : std::nullopt;
}

bool is_pipeline_schedule_name(std::string_view name) { return look_up(name) != nullptr; }

PipelineSchedule make_pipeline_schedule(std::string_view name, int ranks, int stages_per_rank, int micro_batches) {
  const KnownSchedule& known = find_schedule(name);
  const PipelineShape shape{ranks, stages_per_rank, micro_batches};
  check_shape(known, shape);
  PipelineSchedule schedule{.micro_batches = micro_batches, .rank_of_stage = place_stages(known, shape)};
  for (int rank = 0; rank < ranks; ++rank) schedule.of_rank.push_back(known.order(shape, rank));
  return schedule;
}

}  // namespace fsdp
