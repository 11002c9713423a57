// The common interface of causal and sequence-to-sequence language models.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "models/layers.h"
#include "models/loss.h"
#include "models/pretrained_model.h"

namespace fsdp::models {

// A head whose outputs are split over ranks (tensor parallelism): each has the logits of some of the classes.
struct SplitHead {
  // As mean_cross_entropy of all logits.
  std::function<at::Tensor(const at::Tensor& logits, const at::Tensor& labels)> mean_cross_entropy;
  // Returns all logits.
  std::function<at::Tensor(const at::Tensor& logits)> gather;
};

// Hidden states of which each rank has an equal part of the positions (sequence parallelism).
struct SplitPositions {
  int64_t parts = 1;
  // Returns the rows [positions, …] of all ranks.
  std::function<at::Tensor(const at::Tensor& rows)> gather;
};

struct LanguageModelOutput {
  at::Tensor loss;    // scalar fp32 (fp64 for fp64 models), mean over predicted tokens; undefined without labels
  at::Tensor logits;  // [batch, sequence, vocabulary]; undefined with labels and set_fused_loss or set_split_head
};

class LanguageModel : public PretrainedModel {
 public:
  using PretrainedModel::PretrainedModel;

  virtual int64_t vocab_size() const = 0;

  // If `fused` is set, forward with labels computes head and loss in chunks of tokens and never stores all logits
  // (fused_cross_entropy.h); its output then has only the loss. Off by default. If the head has an adapter (lora.h) or
  // a bias, that forward throws.
  void set_fused_loss(bool fused) { fused_loss_ = fused; }

  // If set, the head's products are those of this rank's classes, and tensor_parallel_plan says so. Null: all classes.
  void set_split_head(std::shared_ptr<const SplitHead> split) { split_head_ = std::move(split); }

  // If set, hidden states between layers have a part of the positions, and tensor_parallel_plan says so; dimension 1 is
  // TensorParallelOptions::sequence_dim. Null: all positions.
  void set_split_positions(std::shared_ptr<const SplitPositions> split) { split_positions_ = std::move(split); }

 protected:
  bool has_split_head() const { return split_head_ != nullptr; }
  // Null: hidden states have all positions.
  const SplitPositions* split_positions() const { return split_positions_.get(); }
  // Computes the output of forward. hidden_states: [batch, sequence, width], the input of `head`; labels: [batch,
  // sequence], label i for position i, or undefined. `scaling` turns the head's products into logits.
  LanguageModelOutput predict(Linear& head, const at::Tensor& hidden_states, const at::Tensor& labels,
                              const LogitScaling& scaling = {}) const;

 private:
  bool fused_loss_ = false;
  std::shared_ptr<const SplitHead> split_head_;
  std::shared_ptr<const SplitPositions> split_positions_;
};

}  // namespace fsdp::models
