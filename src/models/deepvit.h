// DeepViT in plain LibTorch: a vision transformer whose attention maps are mixed across heads (Zhou et al., "DeepViT:
// Towards Deeper Vision Transformer", 2021). transformers has no such model, so the FQNs are specific to this library.
//
// Re-attention is the paper's formula, Norm(Theta^T softmax(Q K^T / sqrt(d))) V, in every layer: map g of the new maps
// is the sum over heads h of Theta[h, g] times map h. Norm is a batch norm with heads as channels, as in the authors'
// code; vit-pytorch normalises over the heads instead. Dropout of the maps precedes the mixing, as in both. Blocks are
// ViT blocks with norms first; the class token is classified.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "models/activations.h"
#include "models/deepvit_config.h"
#include "models/image_classifier.h"
#include "models/image_layers.h"
#include "models/layers.h"
#include "models/recomputed_flops.h"

namespace fsdp::models {

class ReAttentionImpl : public torch::nn::Module {
 public:
  ReAttentionImpl(const DeepViTConfig& config, const at::TensorOptions& options);
  // x: [batch, tokens, hidden_size].
  at::Tensor forward(const at::Tensor& x);
  // Draws Theta uniformly, like the authors' 1 x 1 convolution over heads.
  void initialize_theta();

 private:
  at::Tensor mixed(const at::Tensor& maps);

  int64_t head_dim_;
  double dropout_, attention_dropout_;
  Linear qkv_;        // queries, keys and values, concatenated
  at::Tensor theta_;  // [heads, heads]
  BatchNorm2d norm_;
  Linear proj_;
};
TORCH_MODULE(ReAttention);

class DeepViTMLPImpl : public torch::nn::Module {
 public:
  DeepViTMLPImpl(const DeepViTConfig& config, const at::TensorOptions& options);
  at::Tensor forward(const at::Tensor& x);

 private:
  Activation activation_;
  double dropout_;
  Linear fc1_, fc2_;
};
TORCH_MODULE(DeepViTMLP);

class DeepViTBlockImpl : public torch::nn::Module {
 public:
  DeepViTBlockImpl(const DeepViTConfig& config, const at::TensorOptions& options);
  at::Tensor forward(const at::Tensor& x);
  ReAttention& attention() { return attention_; }

 private:
  LayerNorm norm1_;
  ReAttention attention_;
  LayerNorm norm2_;
  DeepViTMLP mlp_;
};
TORCH_MODULE(DeepViTBlock);

// The class token and the projected patches, row by row, with position embeddings added.
class DeepViTEmbeddingsImpl : public torch::nn::Module {
 public:
  DeepViTEmbeddingsImpl(const DeepViTConfig& config, const at::TensorOptions& options);
  at::Tensor forward(const at::Tensor& pixel_values);
  void initialize(double std);

 private:
  double dropout_;
  Conv2d patches_;
  at::Tensor class_token_, positions_;  // [1, 1, hidden_size], [1, tokens, hidden_size]
};
TORCH_MODULE(DeepViTEmbeddings);

class DeepViTImpl : public ImageClassifier {
 public:
  // Parameters and buffers are left uninitialised.
  DeepViTImpl(const DeepViTConfig& config, const at::TensorOptions& options);

  // Throws if the images are not of size image_size.
  ImageClassifierOutput forward(const at::Tensor& pixel_values, const at::Tensor& labels = {}) override;

  int64_t num_classes() const override { return config_.num_labels; }
  int64_t channels() const override { return config_.num_channels; }
  std::optional<int64_t> image_size() const override { return config_.image_size; }
  FolderNames folder_names() const override { return {}; }
  std::vector<std::string> block_class_names() const override { return {"DeepViTBlock"}; }
  void set_activation_checkpointing(const CheckpointPolicy& policy) override { checkpointing_ = policy; }
  // Includes the mixing of the attention maps.
  double flops_per_image(int64_t height, int64_t width) const override;
  double recomputed_flops_per_image(int64_t height, int64_t width) const override;
  // Draws weights, class token and positions from a normal distribution with initializer_range; sets biases to zero and
  // norms to one.
  void initialize() override;

  const DeepViTConfig& config() const { return config_; }

 private:
  void check_size(int64_t height, int64_t width) const;
  std::vector<Products> products_of_block() const;  // for one image

  DeepViTConfig config_;
  DeepViTEmbeddings embeddings_;
  torch::nn::ModuleList layers_;
  LayerNorm norm_{nullptr};
  Linear classifier_{nullptr};
  CheckpointPolicy checkpointing_;
};
TORCH_MODULE(DeepViT);

}  // namespace fsdp::models
