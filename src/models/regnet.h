// RegNet with X and Y blocks in plain LibTorch, equal to transformers' RegNetForImageClassification; FQNs are those of
// Hugging Face checkpoints.
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
#include "models/image_classifier.h"
#include "models/image_layers.h"
#include "models/layers.h"
#include "models/regnet_config.h"

namespace fsdp::models {

// Convolution, batch norm and an optional activation. Only the stride reduces the size of images.
class RegNetConvLayerImpl : public torch::nn::Module {
 public:
  RegNetConvLayerImpl(ConvolutionSizes sizes, Activation activation, const at::TensorOptions& options);
  at::Tensor forward(const at::Tensor& x);
  const Conv2dImpl& convolution() const { return *convolution_; }

 private:
  Conv2d convolution_{nullptr};
  BatchNorm2d normalization_{nullptr};
  Activation activation_;  // null: no activation
};
TORCH_MODULE(RegNetConvLayer);

// Squeeze and excitation: scales channels by factors that are computed from the channel means.
class RegNetSELayerImpl : public torch::nn::Module {
 public:
  RegNetSELayerImpl(int64_t channels, int64_t reduced_channels, const at::TensorOptions& options);
  at::Tensor forward(const at::Tensor& x);
  double flops() const { return squeeze_->flops({1, 1}) + excite_->flops({1, 1}); }

 private:
  Conv2d squeeze_{nullptr}, excite_{nullptr};
};
TORCH_MODULE(RegNetSELayer);

// A block: an X block, or a Y block, which has squeeze and excitation.
class RegNetLayerImpl : public torch::nn::Module {
 public:
  RegNetLayerImpl(const RegNetConfig& config, int64_t in_channels, int64_t out_channels, int64_t stride,
                  const at::TensorOptions& options);
  at::Tensor forward(const at::Tensor& x);
  ImageSize output_size(ImageSize input) const { return middle_->convolution().output_size(input); }
  double flops(ImageSize input) const;

 private:
  Activation activation_;
  RegNetConvLayer shortcut_{nullptr};  // null if the block does not change sizes
  RegNetConvLayer first_{nullptr}, middle_{nullptr};
  RegNetSELayer excitation_{nullptr};
  RegNetConvLayer last_{nullptr};
};
TORCH_MODULE(RegNetLayer);

class RegNetForImageClassificationImpl : public ImageClassifier {
 public:
  // Parameters and buffers are left uninitialised.
  RegNetForImageClassificationImpl(const RegNetConfig& config, const at::TensorOptions& options);

  // Images may have any size; in training mode the last stage must have more than one position or image.
  ImageClassifierOutput forward(const at::Tensor& pixel_values, const at::Tensor& labels = {}) override;

  int64_t num_classes() const override { return config_.num_labels; }
  int64_t channels() const override { return config_.num_channels; }
  std::optional<int64_t> image_size() const override { return std::nullopt; }
  FolderNames folder_names() const override { return {.base_model = "regnet", .ignored = {}}; }
  std::vector<std::string> block_class_names() const override { return {"RegNetLayer"}; }
  void set_activation_checkpointing(const CheckpointPolicy& policy) override { checkpointing_ = policy; }
  double flops_per_image(int64_t height, int64_t width) const override;
  double recomputed_flops_per_image(int64_t height, int64_t width) const override;
  // Initialises the parameters like transformers.
  void initialize() override { initialize_residual_network(*this); }

  const RegNetConfig& config() const { return config_; }

 private:
  void add_stages(torch::nn::Module& encoder, const at::TensorOptions& options);

  RegNetConfig config_;
  RegNetConvLayer stem_{nullptr};
  std::vector<RegNetLayer> layers_;  // the blocks of all stages
  Linear classifier_{nullptr};
  CheckpointPolicy checkpointing_;
};
TORCH_MODULE(RegNetForImageClassification);

}  // namespace fsdp::models
