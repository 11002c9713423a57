// What causal and sequence-to-sequence language models have in common.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "models/pretrained_model.h"

namespace fsdp::models {

struct LanguageModelOutput {
  at::Tensor loss;    // scalar fp32, for fp64 models fp64, mean over the predicted tokens; undefined without labels
  at::Tensor logits;  // [batch, sequence, vocabulary]
};

class LanguageModel : public PretrainedModel {
 public:
  using PretrainedModel::PretrainedModel;

  virtual int64_t vocab_size() const = 0;
};

}  // namespace fsdp::models
