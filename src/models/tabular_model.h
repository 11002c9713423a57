// Models that distinguish two classes (such as click and no click) by numeric and categorical features.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "models/feature_embedding.h"
#include "models/pretrained_model.h"

namespace fsdp::models {

struct TabularOutput {
  at::Tensor loss;    // scalar fp32 (fp64 for fp64 logits), mean binary cross-entropy; undefined without labels
  at::Tensor logits;  // [batch], for class 1
};

// Embedding tables may be too large for one device, so they are not part of the model that is built from a config.json:
// the caller must set them (set_embedding) before the first forward.
class TabularModel : public PretrainedModel {
 public:
  using PretrainedModel::PretrainedModel;

  // numeric: [batch, num_numeric_features], floating point; categorical: int64 [batch, features of tables()], each id a
  // row of its table; labels: [batch] of 0 and 1, any dtype. Other shapes and ids, and a missing embedding, are errors.
  virtual TabularOutput forward(const at::Tensor& numeric, const at::Tensor& categorical,
                                const at::Tensor& labels = {}) = 0;

  virtual int64_t num_numeric_features() const = 0;
  virtual EmbeddingTables tables() const = 0;
  // FLOPs of the dense layers, forward and backward (flops.h). Looking up rows counts as no arithmetic.
  virtual double flops_per_sample() const = 0;
  // The part of these FLOPs that activation checkpointing runs again (recomputed_flops.h).
  virtual double recomputed_flops_per_sample() const = 0;

  // Makes the model the parent of `embedding`, which must have the tables of tables(): a WholeEmbedding on one device,
  // or an embedding that splits its tables over ranks. Must be called at most once.
  void set_embedding(std::shared_ptr<FeatureEmbedding> embedding);
  // Null before set_embedding.
  const std::shared_ptr<FeatureEmbedding>& embedding() const { return embedding_; }

 protected:
  // Returns [batch, features, width].
  at::Tensor look_up(const at::Tensor& categorical) const;

 private:
  std::shared_ptr<FeatureEmbedding> embedding_;
};

// Returns the logits and, if labels are defined, their mean binary cross-entropy.
TabularOutput with_binary_loss(const at::Tensor& logits, const at::Tensor& labels);

}  // namespace fsdp::models
