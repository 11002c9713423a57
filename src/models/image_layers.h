// Layers of image models. Like the layers of layers.h, they are allocated uninitialised.
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
  // FLOPs of forward and backward for one image: 6 for each weight and output position.
  double flops(ImageSize input) const;

  at::Tensor weight;
  at::Tensor bias;  // undefined without bias

 private:
  ConvolutionSizes sizes_;
};
TORCH_MODULE(Conv2d);

// torch.nn.BatchNorm2d with its defaults. Buffers: running_mean and running_var in the parameters' dtype,
// num_batches_tracked in int64. Training with a single value for each channel is an error.
//
// A forward in training mode updates the buffers unless it is a recomputation of an earlier forward
// (fsdp::is_recomputing): activation checkpointing does not change the buffers.
class BatchNorm2dImpl : public torch::nn::Module {
 public:
  BatchNorm2dImpl(int64_t channels, const at::TensorOptions& options);
  // input: [batch, channels, height, width].
  at::Tensor forward(const at::Tensor& input);

  at::Tensor weight, bias, running_mean, running_var, num_batches_tracked;
};
TORCH_MODULE(BatchNorm2d);

// Sets weights to one, biases to zero, and the running statistics to their initial values.
void initialize_batch_norms(torch::nn::Module& module);

// Draws the parameter uniformly within 1/sqrt(`fan_in`), the default of PyTorch's layers.
void draw_by_fan_in(const at::Tensor& parameter, int64_t fan_in);

// Initialises the layers above and Linear layers anywhere below `module`, in module order, like PyTorch's residual
// networks: weights of convolutions normal with variance 2 / fan_out, all other parameters except those of norms by
// draw_by_fan_in.
void initialize_residual_network(torch::nn::Module& module);

}  // namespace fsdp::models
