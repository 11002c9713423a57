// What causal and sequence-to-sequence language models have in common.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "models/layers.h"
#include "models/pretrained_model.h"

namespace fsdp::models {

struct LanguageModelOutput {
  at::Tensor loss;    // scalar fp32, for fp64 models fp64, mean over the predicted tokens; undefined without labels
  at::Tensor logits;  // [batch, sequence, vocabulary]; undefined with labels and set_fused_loss
};

class LanguageModel : public PretrainedModel {
 public:
  using PretrainedModel::PretrainedModel;

  virtual int64_t vocab_size() const = 0;

  // With `fused`, forward with labels computes head and loss in chunks of tokens and never holds all logits
  // (fused_cross_entropy.h); its output has the loss alone. Off by default. A head with an adapter (lora.h) or a bias
  // is an error of that forward.
  void set_fused_loss(bool fused) { fused_loss_ = fused; }

 protected:
  // What forward returns. hidden_states: [batch, sequence, width], what `head` reads; labels: [batch, sequence], label
  // i for position i, or undefined.
  LanguageModelOutput predict(Linear& head, const at::Tensor& hidden_states, const at::Tensor& labels) const;

 private:
  bool fused_loss_ = false;
};

}  // namespace fsdp::models
