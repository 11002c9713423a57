#include "models/regnet.h"

#include <ATen/ops/relu.h>

#include <cmath>
#include <memory>
#include <utility>

#include "models/flops.h"
#include "models/recomputed_flops.h"

namespace fsdp::models {
namespace {

// Adds a module that only gives its children a name prefix.
std::shared_ptr<torch::nn::Module> add_namespace(torch::nn::Module& parent, const std::string& name) {
  return parent.register_module(name, std::make_shared<torch::nn::Module>());
}

// Rounds half to even, like Python.
int64_t reduced_channels(int64_t channels) {
  return static_cast<int64_t>(std::nearbyint(static_cast<double>(channels) / 4));
}

at::Tensor mean_of_places(const at::Tensor& x) { return x.mean({2, 3}, /*keepdim=*/true); }

}  // namespace

RegNetConvLayerImpl::RegNetConvLayerImpl(ConvolutionSizes sizes, Activation activation,
                                         const at::TensorOptions& options)
    : activation_(activation) {
  sizes.padding = sizes.kernel / 2;
  convolution_ = register_module("convolution", Conv2d(sizes, options));
  normalization_ = register_module("normalization", BatchNorm2d(sizes.out_channels, options));
}

at::Tensor RegNetConvLayerImpl::forward(const at::Tensor& x) {
  const at::Tensor normalized = normalization_(convolution_(x));
  return activation_ == nullptr ? normalized : activation_(normalized);
}

RegNetSELayerImpl::RegNetSELayerImpl(int64_t channels, int64_t reduced_channels, const at::TensorOptions& options) {
  const auto attention = add_namespace(*this, "attention");
  squeeze_ = attention->register_module(
      "0",
      Conv2d(ConvolutionSizes{.in_channels = channels, .out_channels = reduced_channels, .with_bias = true}, options));
  excite_ = attention->register_module(
      "2",
      Conv2d(ConvolutionSizes{.in_channels = reduced_channels, .out_channels = channels, .with_bias = true}, options));
}

at::Tensor RegNetSELayerImpl::forward(const at::Tensor& x) {
  return x * excite_(at::relu(squeeze_(mean_of_places(x)))).sigmoid();
}

RegNetLayerImpl::RegNetLayerImpl(const RegNetConfig& config, int64_t in_channels, int64_t out_channels, int64_t stride,
                                 const at::TensorOptions& options)
    : activation_(activation_named(config.hidden_act)) {
  const auto convolution = [&](ConvolutionSizes sizes, Activation activation) {
    sizes.out_channels = out_channels;
    return RegNetConvLayer(sizes, activation, options);
  };
  if (in_channels != out_channels || stride != 1) {
    shortcut_ = register_module("shortcut", convolution({.in_channels = in_channels, .stride = stride}, nullptr));
  }
  const auto layer = add_namespace(*this, "layer");
  int index = 0;
  const auto add = [&](auto module) { return layer->register_module(std::to_string(index++), std::move(module)); };
  first_ = add(convolution({.in_channels = in_channels}, activation_));
  middle_ = add(
      convolution({.in_channels = out_channels, .kernel = 3, .stride = stride, .groups = config.groups(out_channels)},
                  activation_));
  if (config.layer_type == "y") excitation_ = add(RegNetSELayer(out_channels, reduced_channels(in_channels), options));
  last_ = add(convolution({.in_channels = out_channels}, nullptr));
}

at::Tensor RegNetLayerImpl::forward(const at::Tensor& x) {
  at::Tensor hidden = middle_(first_(x));
  if (!excitation_.is_empty()) hidden = excitation_(hidden);
  hidden = last_(hidden);
  return activation_(hidden + (shortcut_.is_empty() ? x : shortcut_(x)));
}

double RegNetLayerImpl::flops(ImageSize input) const {
  const ImageSize output = output_size(input);
  double sum =
      first_->convolution().flops(input) + middle_->convolution().flops(input) + last_->convolution().flops(output);
  if (!excitation_.is_empty()) sum += excitation_->flops();
  if (!shortcut_.is_empty()) sum += shortcut_->convolution().flops(input);
  return sum;
}

RegNetForImageClassificationImpl::RegNetForImageClassificationImpl(const RegNetConfig& config,
                                                                   const at::TensorOptions& options)
    : config_(config) {
  const auto regnet = add_namespace(*this, "regnet");
  stem_ = add_namespace(*regnet, "embedder")
              ->register_module("embedder", RegNetConvLayer(ConvolutionSizes{.in_channels = config.num_channels,
                                                                             .out_channels = config.embedding_size,
                                                                             .kernel = 3,
                                                                             .stride = 2},
                                                            activation_named(config.hidden_act), options));
  add_stages(*add_namespace(*regnet, "encoder"), options);
  classifier_ = add_namespace(*this, "classifier")
                    ->register_module("1", Linear(config.hidden_sizes.back(), config.num_labels, true, options));
}

void RegNetForImageClassificationImpl::add_stages(torch::nn::Module& encoder, const at::TensorOptions& options) {
  const auto stages = add_namespace(encoder, "stages");
  int64_t channels = config_.embedding_size;
  for (size_t stage = 0; stage < config_.depths.size(); ++stage) {
    const auto layers = add_namespace(*add_namespace(*stages, std::to_string(stage)), "layers");
    for (int64_t i = 0; i < config_.depths[stage]; ++i) {
      const bool shrinks = i == 0 && (stage > 0 || config_.downsample_in_first_stage);
      const RegNetLayer layer(config_, channels, config_.hidden_sizes[stage], shrinks ? 2 : 1, options);
      layers_.push_back(layers->register_module(std::to_string(i), layer));
      channels = config_.hidden_sizes[stage];
    }
  }
}

ImageClassifierOutput RegNetForImageClassificationImpl::forward(const at::Tensor& pixel_values,
                                                                const at::Tensor& labels) {
  check_images("RegNet", pixel_values, labels, config_.num_channels);
  at::Tensor hidden = stem_(pixel_values);
  for (size_t i = 0; i < layers_.size(); ++i) {
    hidden = checkpointing_.forward(static_cast<int64_t>(i), layers_[i], hidden);
  }
  return with_class_loss(classifier_(mean_of_places(hidden).flatten(1)), labels);
}

double RegNetForImageClassificationImpl::flops_per_image(int64_t height, int64_t width) const {
  ImageSize size{height, width};
  double sum = stem_->convolution().flops(size);
  size = stem_->convolution().output_size(size);
  for (const RegNetLayer& layer : layers_) {
    sum += layer->flops(size);
    size = layer->output_size(size);
  }
  return sum + linear_flops(static_cast<double>(config_.hidden_sizes.back() * config_.num_labels), 1);
}

double RegNetForImageClassificationImpl::recomputed_flops_per_image(int64_t height, int64_t width) const {
  ImageSize size = stem_->convolution().output_size({height, width});
  double sum = 0;
  for (size_t i = 0; i < layers_.size(); ++i) {
    sum += recomputed_flops(checkpointing_, static_cast<int64_t>(i),
                            {{ProductKind::kConvolution, layers_[i]->flops(size)}});
    size = layers_[i]->output_size(size);
  }
  return sum;
}

}  // namespace fsdp::models
