#include "models/image_layers.h"

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/batch_norm.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <cmath>

#include "fsdp/activation_checkpoint.h"
#include "models/flops.h"

namespace fsdp::models {
namespace {

constexpr double kMomentum = 0.1;
constexpr double kEpsilon = 1e-5;

}  // namespace

Conv2dImpl::Conv2dImpl(const ConvolutionSizes& sizes, const at::TensorOptions& options)
    : weight(register_parameter(
          "weight",
          at::empty({sizes.out_channels, sizes.in_channels / sizes.groups, sizes.kernel, sizes.kernel}, options))),
      sizes_(sizes) {
  if (sizes.with_bias) bias = register_parameter("bias", at::empty({sizes.out_channels}, options));
}

at::Tensor Conv2dImpl::forward(const at::Tensor& input) {
  return at::conv2d(input, weight, bias, sizes_.stride, sizes_.padding, /*dilation=*/1, sizes_.groups);
}

ImageSize Conv2dImpl::output_size(ImageSize input) const {
  const auto of = [&](int64_t size) { return (size + 2 * sizes_.padding - sizes_.kernel) / sizes_.stride + 1; };
  return {of(input.height), of(input.width)};
}

double Conv2dImpl::flops(ImageSize input) const {
  const ImageSize output = output_size(input);
  const double places = static_cast<double>(output.height) * static_cast<double>(output.width);
  return linear_flops(static_cast<double>(weight.numel()), places);
}

BatchNorm2dImpl::BatchNorm2dImpl(int64_t channels, const at::TensorOptions& options)
    : weight(register_parameter("weight", at::empty({channels}, options))),
      bias(register_parameter("bias", at::empty({channels}, options))),
      running_mean(register_buffer("running_mean", at::empty({channels}, options))),
      running_var(register_buffer("running_var", at::empty({channels}, options))),
      num_batches_tracked(register_buffer("num_batches_tracked", at::empty({}, options.dtype(at::kLong)))) {}

at::Tensor BatchNorm2dImpl::forward(const at::Tensor& input) {
  const bool training = is_training();
  const bool updates = training && !is_recomputing();
  TORCH_CHECK(!training || input.numel() > input.size(1),
              "batch norm: training needs more than one value for each channel, input is of shape ", input.sizes());
  if (updates) {
    const at::NoGradGuard no_grad;
    num_batches_tracked.add_(1);
  }
  const bool with_running = updates || !training;
  return at::batch_norm(input, weight, bias, with_running ? running_mean : at::Tensor(),
                        with_running ? running_var : at::Tensor(), training, kMomentum, kEpsilon,
                        at::globalContext().userEnabledCuDNN());
}

void initialize_batch_norms(torch::nn::Module& module) {
  const at::NoGradGuard no_grad;
  for (const auto& child : module.modules()) {
    if (auto* norm = child->as<BatchNorm2dImpl>()) {
      norm->weight.fill_(1.0);
      norm->bias.zero_();
      norm->running_mean.zero_();
      norm->running_var.fill_(1.0);
      norm->num_batches_tracked.zero_();
    }
  }
}

void draw_by_fan_in(const at::Tensor& parameter, int64_t fan_in) {
  const double bound = 1.0 / std::sqrt(static_cast<double>(fan_in));
  parameter.uniform_(-bound, bound);
}

void initialize_residual_network(torch::nn::Module& module) {
  initialize_batch_norms(module);
  const at::NoGradGuard no_grad;
  for (const auto& child : module.modules()) {
    if (auto* convolution = child->as<Conv2dImpl>()) {
      const at::Tensor& weight = convolution->weight;
      const auto fan_out = static_cast<double>(weight.size(0) * weight.size(2) * weight.size(3));
      weight.normal_(0.0, std::sqrt(2.0 / fan_out));
      if (convolution->bias.defined()) draw_by_fan_in(convolution->bias, weight[0].numel());
    } else if (auto* linear = child->as<LinearImpl>()) {
      draw_by_fan_in(linear->weight, linear->weight.size(1));
      if (linear->bias.defined()) draw_by_fan_in(linear->bias, linear->weight.size(1));
    }
  }
}

}  // namespace fsdp::models
