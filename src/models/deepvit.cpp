#include "models/deepvit.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/matmul.h>
#include <c10/util/Exception.h>

#include <cmath>

#include "models/attention.h"
#include "models/flops.h"

namespace fsdp::models {

ReAttentionImpl::ReAttentionImpl(const DeepViTConfig& config, const at::TensorOptions& options)
    : head_dim_(config.hidden_size / config.num_attention_heads),
      dropout_(config.dropout),
      attention_dropout_(config.attention_dropout),
      qkv_(register_module("qkv", Linear(config.hidden_size, 3 * config.hidden_size, config.qkv_bias, options))),
      theta_(register_parameter("theta", at::empty({config.num_attention_heads, config.num_attention_heads}, options))),
      norm_(register_module("norm", BatchNorm2d(config.num_attention_heads, options))),
      proj_(register_module("proj", Linear(config.hidden_size, config.hidden_size, true, options))) {}

at::Tensor ReAttentionImpl::mixed(const at::Tensor& maps) {
  const at::Tensor of_new_heads = theta_.t();
  return at::matmul(of_new_heads, maps.flatten(2)).view(maps.sizes());
}

at::Tensor ReAttentionImpl::forward(const at::Tensor& x) {
  const auto parts = qkv_(x).chunk(3, /*dim=*/-1);
  const at::Tensor query = split_heads(parts[0], head_dim_), key = split_heads(parts[1], head_dim_);
  const at::Tensor scores = at::matmul(query, key.transpose(-2, -1)) / std::sqrt(static_cast<double>(head_dim_));
  const at::Tensor maps = at::dropout(scores.softmax(-1), attention_dropout_, is_training());
  const at::Tensor weights = norm_(mixed(maps));
  const at::Tensor attended = at::matmul(weights, split_heads(parts[2], head_dim_));
  return at::dropout(proj_(attended.transpose(1, 2).flatten(2)), dropout_, is_training());
}

void ReAttentionImpl::initialize_theta() {
  const at::NoGradGuard no_grad;
  draw_by_fan_in(theta_, theta_.size(0));
}

DeepViTMLPImpl::DeepViTMLPImpl(const DeepViTConfig& config, const at::TensorOptions& options)
    : activation_(activation_named(config.hidden_act)),
      dropout_(config.dropout),
      fc1_(register_module("fc1", Linear(config.hidden_size, config.intermediate_size, true, options))),
      fc2_(register_module("fc2", Linear(config.intermediate_size, config.hidden_size, true, options))) {}

at::Tensor DeepViTMLPImpl::forward(const at::Tensor& x) {
  return at::dropout(fc2_(activation_(fc1_(x))), dropout_, is_training());
}

DeepViTBlockImpl::DeepViTBlockImpl(const DeepViTConfig& config, const at::TensorOptions& options)
    : norm1_(register_module("norm1", LayerNorm(config.hidden_size, config.layer_norm_eps, options))),
      attention_(register_module("attention", ReAttention(config, options))),
      norm2_(register_module("norm2", LayerNorm(config.hidden_size, config.layer_norm_eps, options))),
      mlp_(register_module("mlp", DeepViTMLP(config, options))) {}

at::Tensor DeepViTBlockImpl::forward(const at::Tensor& x) {
  const at::Tensor attended = x + attention_(norm1_(x));
  return attended + mlp_(norm2_(attended));
}

DeepViTEmbeddingsImpl::DeepViTEmbeddingsImpl(const DeepViTConfig& config, const at::TensorOptions& options)
    : dropout_(config.dropout),
      patches_(register_module("patches", Conv2d(ConvolutionSizes{.in_channels = config.num_channels,
                                                                  .out_channels = config.hidden_size,
                                                                  .kernel = config.patch_size,
                                                                  .stride = config.patch_size,
                                                                  .with_bias = true},
                                                 options))),
      class_token_(register_parameter("class_token", at::empty({1, 1, config.hidden_size}, options))),
      positions_(register_parameter("positions", at::empty({1, config.tokens(), config.hidden_size}, options))) {}

at::Tensor DeepViTEmbeddingsImpl::forward(const at::Tensor& pixel_values) {
  const at::Tensor patches = patches_(pixel_values).flatten(2).transpose(1, 2);
  const at::Tensor token = class_token_.expand({patches.size(0), -1, -1});
  return at::dropout(at::cat({token, patches}, 1) + positions_, dropout_, is_training());
}

void DeepViTEmbeddingsImpl::initialize(double std) {
  const at::NoGradGuard no_grad;
  for (const at::Tensor& drawn : {patches_->weight, class_token_, positions_}) drawn.normal_(0.0, std);
  patches_->bias.zero_();
}

DeepViTImpl::DeepViTImpl(const DeepViTConfig& config, const at::TensorOptions& options)
    : config_(config),
      embeddings_(register_module("embeddings", DeepViTEmbeddings(config, options))),
      layers_(register_module("layers", torch::nn::ModuleList())) {
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) layers_->push_back(DeepViTBlock(config, options));
  norm_ = register_module("norm", LayerNorm(config.hidden_size, config.layer_norm_eps, options));
  classifier_ = register_module("classifier", Linear(config.hidden_size, config.num_labels, true, options));
}

void DeepViTImpl::check_size(int64_t height, int64_t width) const {
  TORCH_CHECK(height == config_.image_size && width == config_.image_size, "DeepViT: images are ", height, " x ", width,
              ", but image_size is ", config_.image_size);
}

ImageClassifierOutput DeepViTImpl::forward(const at::Tensor& pixel_values, const at::Tensor& labels) {
  check_images("DeepViT", pixel_values, labels, config_.num_channels);
  check_size(pixel_values.size(2), pixel_values.size(3));
  at::Tensor hidden = embeddings_(pixel_values);
  for (size_t i = 0; i < layers_->size(); ++i) {
    hidden = checkpointing_.forward(static_cast<int64_t>(i), layers_->ptr<DeepViTBlockImpl>(i), hidden);
  }
  return with_class_loss(classifier_(norm_(hidden).select(1, 0)), labels);
}

std::vector<Products> DeepViTImpl::products_of_block() const {
  const auto hidden = static_cast<double>(config_.hidden_size), tokens = static_cast<double>(config_.tokens());
  const auto heads = static_cast<double>(config_.num_attention_heads);
  const double outputs = hidden + 2 * static_cast<double>(config_.intermediate_size);  // of proj and of the MLP
  return {{linear_kind(config_.qkv_bias), linear_flops(3 * hidden * hidden, tokens)},
          {ProductKind::kAddmm, linear_flops(hidden * outputs, tokens)},
          {ProductKind::kBmm, attention_flops(hidden, tokens, tokens)},
          {ProductKind::kMm, linear_flops(heads * heads, tokens * tokens)}};  // the mixing of maps
}

double DeepViTImpl::flops_per_image(int64_t height, int64_t width) const {
  check_size(height, width);
  const auto hidden = static_cast<double>(config_.hidden_size), tokens = static_cast<double>(config_.tokens());
  const auto patch = static_cast<double>(config_.num_channels * config_.patch_size * config_.patch_size);
  return static_cast<double>(config_.num_hidden_layers) * sum_of(products_of_block()) +
         linear_flops(hidden * patch, tokens - 1) + linear_flops(hidden * static_cast<double>(config_.num_labels), 1);
}

double DeepViTImpl::recomputed_flops_per_image(int64_t height, int64_t width) const {
  check_size(height, width);
  return recomputed_flops_of_all(checkpointing_, config_.num_hidden_layers, products_of_block());
}

void DeepViTImpl::initialize() {
  initialize_batch_norms(*this);
  initialize_parameters(*this, config_.initializer_range);
  embeddings_->initialize(config_.initializer_range);
  for (size_t i = 0; i < layers_->size(); ++i) layers_->ptr<DeepViTBlockImpl>(i)->attention()->initialize_theta();
}

}  // namespace fsdp::models
