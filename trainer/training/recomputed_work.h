// What activation checkpointing adds to the work of a step.
#pragma once

#include "data/batch.h"
#include "models/pretrained_model.h"

namespace fsdp::trainer {

// FLOPs that activation checkpointing, as it is set, adds to those of a sample of such data (SampleWork::flops). A
// model of a kind of which they are not known is an error.
double recomputed_flops_of_sample(const models::PretrainedModel& model, const Batch& batch);

}  // namespace fsdp::trainer
