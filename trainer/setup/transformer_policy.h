// The wrap policy "transformer".
#pragma once

#include <string>
#include <vector>

#include "fsdp/wrap_policy.h"
#include "models/pretrained_model.h"

namespace fsdp::trainer {

// Makes a unit of each of the model's blocks, each module of `more_classes`, and each large module outside of blocks
// (embeddings, heads), which the root would otherwise keep gathered from the first layer to the last. A weight that two
// of these modules share still belongs to the root.
WrapPolicy transformer_policy(const models::PretrainedModel& model, const std::vector<std::string>& more_classes = {});

}  // namespace fsdp::trainer
