// DHEN in plain LibTorch: stacked layers, each an ensemble of feature interactions, for predictions from numeric and
// categorical features (Zhang et al., "DHEN: A Deep and Hierarchical Ensemble Network for Large-Scale Click-Through
// Rate Prediction", 2022). There is no published code, so the FQNs are specific to this library.
//
// A layer takes m embeddings X of one width d and makes k * l embeddings from k interactions, as in the paper:
// Norm(concatenation of interaction_i(X) + shortcut(X)), where the shortcut is X itself if k * l = m, else a linear map
// of m embeddings to k * l, and Norm is a layer norm over d. The interactions, each [m, d] to [l, d], are:
//   attention    multi-head self-attention over the m embeddings, then a linear map of m embeddings to l
//   cross        x * (U (V x) + b) + x for all m * d numbers x (the low-rank form of DCN v2), then the same linear map
//   dot_product  products of all pairs of different embeddings, then a linear map to l * d numbers (as in DLRM)
//   linear       a linear map of m embeddings to l
//   mlp          all m * d numbers through one hidden layer with ReLU to l * d
// The paper's convolution is not implemented.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "models/dhen_config.h"
#include "models/feature_embedding.h"
#include "models/layers.h"
#include "models/recomputed_flops.h"
#include "models/tabular_model.h"

namespace fsdp::models {

// One interaction of the ensemble.
class Interaction : public torch::nn::Module {
 public:
  // x: [batch, m, d]. Returns [batch, l, d].
  virtual at::Tensor forward(const at::Tensor& x) = 0;
  // The products of one sample.
  virtual std::vector<Products> products() const = 0;
};

// A linear map of embeddings to embeddings, the same map for each of the d components.
class EmbeddingMixImpl : public torch::nn::Module {
 public:
  EmbeddingMixImpl(int64_t inputs, int64_t outputs, const at::TensorOptions& options);
  // [batch, inputs, d] to [batch, outputs, d].
  at::Tensor forward(const at::Tensor& x);
  static constexpr ProductKind kProduct = ProductKind::kMm;  // the kind of product in forward

 private:
  Linear mix_;
};
TORCH_MODULE(EmbeddingMix);

// Linear layers with ReLU between them.
class MultilayerImpl : public torch::nn::Module {
 public:
  // sizes: the sizes of the input, the hidden layers and the output.
  MultilayerImpl(std::vector<int64_t> sizes, const at::TensorOptions& options);
  at::Tensor forward(at::Tensor x);
  std::vector<Products> products() const;

 private:
  std::vector<int64_t> sizes_;
  torch::nn::ModuleList layers_;
};
TORCH_MODULE(Multilayer);

class DhenLayerImpl : public torch::nn::Module {
 public:
  // inputs: the number of input embeddings.
  DhenLayerImpl(const DhenConfig& config, int64_t inputs, const at::TensorOptions& options);
  at::Tensor forward(const at::Tensor& x);
  std::vector<Products> products() const;

 private:
  std::vector<std::shared_ptr<Interaction>> interactions_;
  EmbeddingMix shortcut_{nullptr};  // null: the identity
  LayerNorm norm_;
  double shortcut_flops_ = 0;  // 0: the identity
};
TORCH_MODULE(DhenLayer);

class DhenImpl : public TabularModel {
 public:
  // Dense parameters are left uninitialised. The embedding must be set before use.
  DhenImpl(const DhenConfig& config, const at::TensorOptions& options);
  // As above, with the embedding set.
  DhenImpl(const DhenConfig& config, std::shared_ptr<FeatureEmbedding> embedding, const at::TensorOptions& options);

  TabularOutput forward(const at::Tensor& numeric, const at::Tensor& categorical,
                        const at::Tensor& labels = {}) override;

  int64_t num_numeric_features() const override { return config_.num_numeric_features; }
  EmbeddingTables tables() const override { return config_.tables(); }
  double flops_per_sample() const override;
  double recomputed_flops_per_sample() const override;
  FolderNames folder_names() const override { return {}; }
  std::vector<std::string> block_class_names() const override { return {"DhenLayer"}; }
  void set_activation_checkpointing(const CheckpointPolicy& policy) override { checkpointing_ = policy; }
  // Draws dense weights from a normal distribution with initializer_range; sets biases to zero and norms to one. Tables
  // are initialised when they are made.
  void initialize() override;
  // The number of parameters without the tables.
  int64_t dense_parameters() const;

  const DhenConfig& config() const { return config_; }

 private:
  void check_inputs(const at::Tensor& numeric, const at::Tensor& categorical, const at::Tensor& labels) const;

  DhenConfig config_;
  Multilayer numeric_;
  torch::nn::ModuleList layers_;
  Multilayer head_;
  CheckpointPolicy checkpointing_;
};
TORCH_MODULE(Dhen);

}  // namespace fsdp::models
