// Layers of image models, allocated uninitialised as those of layers.h.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>

#include "models/layers.h"

namespace fsdp::models {

struct ImageSize {
  int64_t height = 0;
  int64_t width = 0;
};

struct ConvolutionSizes {
  int64_t in_channels = 0;
  int64_t out_channels = 0;
  int64_t kernel = 1;
  int64_t stride = 1;
  int64_t padding = 0;
  int64_t groups = 1;
  bool with_bias = false;
};

// Parameters: weight [out_channels, in_channels / groups, kernel, kernel], bias [out_channels].
class Conv2dImpl : public torch::nn::Module {
 public:
  Conv2dImpl(const ConvolutionSizes& sizes, const at::TensorOptions& options);
  // input: [batch, in_channels, height, width].
  at::Tensor forward(const at::Tensor& input);
  ImageSize output_size(ImageSize input) const;
  // Of forward and backward, for one image: 6 for each weight and place of the output.
  double flops(ImageSize input) const;

  at::Tensor weight;
  at::Tensor bias;  // undefined without bias

 private:
  ConvolutionSizes sizes_;
};
TORCH_MODULE(Conv2d);

// torch.nn.BatchNorm2d with its defaults. Buffers: running_mean and running_var of the parameters' dtype,
// num_batches_tracked int64. Training on a single value for each channel is an error.
//
// A forward in training mode updates the buffers, but for one that is the recomputation of another
// (fsdp::is_recomputing): with activation checkpointing they are what they are without it.
class BatchNorm2dImpl : public torch::nn::Module {
 public:
  BatchNorm2dImpl(int64_t channels, const at::TensorOptions& options);
  // input: [batch, channels, height, width].
  at::Tensor forward(const at::Tensor& input);

  at::Tensor weight, bias, running_mean, running_var, num_batches_tracked;
};
TORCH_MODULE(BatchNorm2d);

// One for weights, zero for biases; the running statistics of no batch.
void initialize_batch_norms(torch::nn::Module& module);

// Uniform within 1/sqrt(`fan_in`), as PyTorch's layers are by default.
void draw_by_fan_in(const at::Tensor& parameter, int64_t fan_in);

// Initialises the layers above and Linear anywhere below `module`, in module order, as PyTorch's residual networks do:
// weights of convolutions normal with variance 2 / fan_out, all else that is not of a norm by draw_by_fan_in.
void initialize_residual_network(torch::nn::Module& module);

}  // namespace fsdp::models
