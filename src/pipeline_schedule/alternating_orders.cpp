// Orders that run some forward passes ahead, then a forward and a backward pass in turns, then the other backward
// passes. They differ in the number that is ahead and in the place of weight gradients.
#include <algorithm>
#include <optional>

#include "pipeline_schedule/orders.h"

namespace fsdp::pipeline_schedule {
namespace {

using Kind = PipelineActionKind;

// The `index`-th forward pass of a rank, or backward pass, which takes the rank's stages from the last to the first.
PipelineAction pass(const PipelineShape& shape, int rank, Kind kind, int index) {
  const int per_stage = shape.micro_batches_per_round();
  const int per_round = per_stage * shape.stages_per_rank;
  const int turn = index % per_round / per_stage;
  const int local = kind == Kind::kForward ? turn : shape.stages_per_rank - 1 - turn;
  return {local * shape.ranks + rank, kind, index / per_round * per_stage + index % per_stage};
}

// ahead: forward passes before the first backward pass. weights_behind: unset, weight gradients are part of backward
// passes; otherwise so many backward passes wait for theirs.
std::vector<PipelineAction> alternate(const PipelineShape& shape, int rank, int ahead,
                                      std::optional<int> weights_behind = std::nullopt) {
  const int passes = shape.passes_of_rank();
  ahead = std::min(ahead, passes);
  std::vector<PipelineAction> order;
  const auto add = [&](Kind kind, int index) { order.push_back(pass(shape, rank, kind, index)); };
  int weights = 0;
  for (int i = 0; i < ahead; ++i) add(Kind::kForward, i);
  for (int i = 0; i < passes; ++i) {
    if (ahead + i < passes) add(Kind::kForward, ahead + i);
    add(weights_behind ? Kind::kInputGradient : Kind::kBackward, i);
    if (weights_behind && i >= *weights_behind) add(Kind::kWeightGradient, weights++);
  }
  while (weights_behind && weights < passes) add(Kind::kWeightGradient, weights++);
  return order;
}

// Forward passes of a rank's other stages before those of its last stage begin to be answered by backward passes.
int passes_of_other_stages(const PipelineShape& shape) {
  return (shape.stages_per_rank - 1) * shape.micro_batches_per_round();
}

}  // namespace

std::vector<PipelineAction> gpipe_order(const PipelineShape& shape, int rank) {
  return alternate(shape, rank, shape.passes_of_rank());
}

std::vector<PipelineAction> one_forward_one_backward_order(const PipelineShape& shape, int rank) {
  return alternate(shape, rank, shape.ranks - 1 - rank);
}

std::vector<PipelineAction> interleaved_order(const PipelineShape& shape, int rank) {
  return alternate(shape, rank, passes_of_other_stages(shape) + 2 * (shape.ranks - 1 - rank));
}

// As many weight gradients wait as ranks come before: rank 0 has the most forward passes in flight already, and all
// ranks hold as many activations as it does.
std::vector<PipelineAction> interleaved_zero_bubble_order(const PipelineShape& shape, int rank) {
  return alternate(shape, rank, passes_of_other_stages(shape) + shape.ranks - 1 - rank, rank);
}

}  // namespace fsdp::pipeline_schedule
