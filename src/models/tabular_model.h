// Models that tell two classes apart (a click and none, say) by numbers and categories.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "models/feature_embedding.h"
#include "models/pretrained_model.h"

namespace fsdp::models {

struct TabularOutput {
  at::Tensor loss;    // scalar fp32 (fp64 for fp64 logits), mean binary cross-entropy; undefined without labels
  at::Tensor logits;  // [batch], of class 1
};

// Embedding tables may be too large for one device, so they are no part of what is built from a config.json: whoever
// uses the model says where they are (set_embedding) before its first forward.
class TabularModel : public PretrainedModel {
 public:
  using PretrainedModel::PretrainedModel;

  // numeric: [batch, num_numeric_features], floating; categorical: int64 [batch, features of tables()], each id a row
  // of its table; labels: [batch] of 0 and 1, any dtype. Other shapes and ids are errors, and so is a missing
  // embedding.
  virtual TabularOutput forward(const at::Tensor& numeric, const at::Tensor& categorical,
                                const at::Tensor& labels = {}) = 0;

  virtual int64_t num_numeric_features() const = 0;
  virtual EmbeddingTables tables() const = 0;
  // Of dense layers, forward and backward (flops.h). Looking rows up is no arithmetic.
  virtual double flops_per_sample() const = 0;
  // What activation checkpointing runs again of them (recomputed_flops.h).
  virtual double recomputed_flops_per_sample() const = 0;

  // The model becomes the parent of `embedding`, which has tables(): a WholeEmbedding on one device, or one that splits
  // its tables over ranks. Once.
  void set_embedding(std::shared_ptr<FeatureEmbedding> embedding);
  // Null before set_embedding.
  const std::shared_ptr<FeatureEmbedding>& embedding() const { return embedding_; }

 protected:
  // [batch, features, width].
  at::Tensor look_up(const at::Tensor& categorical) const;

 private:
  std::shared_ptr<FeatureEmbedding> embedding_;
};

// The logits, and if there are labels their mean binary cross-entropy.
TabularOutput with_binary_loss(const at::Tensor& logits, const at::Tensor& labels);

}  // namespace fsdp::models
