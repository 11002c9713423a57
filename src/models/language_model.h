// The common interface of causal and sequence-to-sequence language models.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <utility>

#include "fsdp/tensor_parallel.h"
#include "models/layers.h"
#include "models/loss.h"
#include "models/pretrained_model.h"

namespace fsdp::models {

// The parts that a rank has of a model's activations (tensor parallelism).
struct SplitActivations {
  int rank = 0, ranks = 1;                      // of the group
  SplitClasses classes;                         // of the logits
  std::optional<SplitSequence> positions = {};  // of the hidden states between layers, as rows; unset: all
};

struct LanguageModelOutput {
  at::Tensor loss;    // scalar fp32 (fp64 for fp64 models), mean over predicted tokens; undefined without labels
  at::Tensor logits;  // [batch, sequence, vocabulary]; undefined with labels and a fused or split loss
};

class LanguageModel : public PretrainedModel {
 public:
  using PretrainedModel::PretrainedModel;

  virtual int64_t vocab_size() const = 0;

  // If `fused` is set, forward with labels computes head and loss in chunks of tokens and never stores all logits
  // (fused_cross_entropy.h); its output then has only the loss. Off by default. If the head has an adapter (lora.h) or
  // a bias, that forward throws.
  void set_fused_loss(bool fused) { fused_loss_ = fused; }

 protected:
  void set_split(SplitActivations split) { split_ = std::move(split); }
  bool is_split() const { return split_.has_value(); }
  // The positions of the hidden states between layers, as rows; null if each rank has all of them.
  const SplitSequence* split_positions() const { return split_ && split_->positions ? &*split_->positions : nullptr; }

  // Returns the groups of a layer's outputs (TensorParallelRule::groups) that this rank has: the first one, and their
  // number.
  std::pair<int64_t, int64_t> own_groups(int64_t groups) const;

  // Computes the output of forward. hidden_states: [batch, sequence, width], the input of `head`; labels: [batch,
  // sequence], label i for position i, or undefined. `scaling` turns the head's products into logits.
  LanguageModelOutput predict(Linear& head, const at::Tensor& hidden_states, const at::Tensor& labels,
                              const LogitScaling& scaling = {}) const;

 private:
  bool fused_loss_ = false;
  std::optional<SplitActivations> split_;
};

}  // namespace fsdp::models
