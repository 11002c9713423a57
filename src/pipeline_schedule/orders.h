// The orders of passes that make_pipeline_schedule knows, for one rank each.
#pragma once

#include <vector>

#include "fsdp/pipeline_schedule.h"

namespace fsdp::pipeline_schedule {

struct PipelineShape {
  int ranks = 1;
  int stages_per_rank = 1;
  int micro_batches = 1;

  int passes_of_rank() const { return stages_per_rank * micro_batches; }  // forward

  // Micro-batches that go through one stage of a rank before the rank turns to its next stage: about as many as there
  // are ranks, so that each rank gets to its second stage when the first results of the last rank arrive.
  int rounds() const { return micro_batches < ranks ? 1 : micro_batches / ranks; }
  int micro_batches_per_round() const { return micro_batches / rounds(); }
};

std::vector<PipelineAction> gpipe_order(const PipelineShape& shape, int rank);
std::vector<PipelineAction> one_forward_one_backward_order(const PipelineShape& shape, int rank);
std::vector<PipelineAction> interleaved_order(const PipelineShape& shape, int rank);
std::vector<PipelineAction> interleaved_zero_bubble_order(const PipelineShape& shape, int rank);
std::vector<PipelineAction> zero_bubble_v_order(const PipelineShape& shape, int rank);

}  // namespace fsdp::pipeline_schedule
