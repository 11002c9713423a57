// The wrap policy "transformer".
#pragma once

#include <string>
#include <vector>

#include "fsdp/options.h"
#include "models/pretrained_model.h"

namespace fsdp::trainer {

// A unit for each of the model's blocks and each module of `more_classes`; with no_shard, where units only say which
// gradients are reduced together, also for each large module outside of blocks (embeddings, heads).
WrapPolicy transformer_policy(const models::PretrainedModel& model, ShardingStrategy strategy,
                              const std::vector<std::string>& more_classes = {});

}  // namespace fsdp::trainer
