#include "models/layers.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/rsqrt.h>
#include <c10/util/Exception.h>

#include <unordered_set>

namespace fsdp::models {

LinearImpl::LinearImpl(int64_t in_features, int64_t out_features, bool with_bias, const at::TensorOptions& options)
    : weight(register_parameter("weight", at::empty({out_features, in_features}, options))) {
  if (with_bias) {
    bias = register_parameter("bias", at::empty({out_features}, options));
  }
}

LinearImpl::LinearImpl(const at::Tensor& shared_weight) : weight(register_parameter("weight", shared_weight)) {}

at::Tensor LinearImpl::forward(const at::Tensor& input) {
  at::Tensor output = bias.defined() ? at::linear(input, weight, bias) : at::linear(input, weight);
  return lora_a.defined() ? output + adapter_scale_ * at::linear(at::linear(input, lora_a), lora_b) : output;
}

void LinearImpl::add_adapter(int64_t rank, double scale) {
  TORCH_CHECK(rank >= 1, "LoRA: rank ", rank, " must be at least 1");
  TORCH_CHECK(!lora_a.defined(), "LoRA: this layer has an adapter already");
  const auto options = weight.options().requires_grad(false);
  lora_a = register_parameter("lora_A", at::empty({rank, weight.size(1)}, options));
  lora_b = register_parameter("lora_B", at::empty({weight.size(0), rank}, options));
  adapter_scale_ = scale;
}

EmbeddingImpl::EmbeddingImpl(int64_t num_embeddings, int64_t dim, std::optional<int64_t> padding_idx,
                             const at::TensorOptions& options)
    : weight(register_parameter("weight", at::empty({num_embeddings, dim}, options))), padding_idx(padding_idx) {}

at::Tensor EmbeddingImpl::forward(const at::Tensor& indices) {
  return at::embedding(weight, indices, padding_idx.value_or(-1));
}

RMSNormImpl::RMSNormImpl(int64_t dim, double eps, const at::TensorOptions& options)
    : weight(register_parameter("weight", at::empty({dim}, options))), eps_(eps) {}

at::Tensor RMSNormImpl::forward(const at::Tensor& input) {
  const at::Tensor wide = input.scalar_type() == at::kDouble ? input : input.to(at::kFloat);
  const at::Tensor scale = at::rsqrt(wide.pow(2).mean(-1, /*keepdim=*/true) + eps_);
  return weight * (wide * scale).to(input.scalar_type());
}

void initialize_parameters(torch::nn::Module& module, double std) {
  const at::NoGradGuard no_grad;
  std::unordered_set<const at::TensorImpl*> done;
  const auto first_time = [&done](const at::Tensor& parameter) {
    return done.insert(parameter.unsafeGetTensorImpl()).second;
  };
  for (const auto& layer : module.modules()) {
    if (auto* linear = layer->as<LinearImpl>()) {
      if (first_time(linear->weight)) {
        linear->weight.normal_(0.0, std);
      }
      if (linear->bias.defined()) {
        linear->bias.zero_();
      }
    } else if (auto* embedding = layer->as<EmbeddingImpl>()) {
      if (first_time(embedding->weight)) {
        embedding->weight.normal_(0.0, std);
        if (embedding->padding_idx) {
          embedding->weight.select(0, *embedding->padding_idx).zero_();
        }
      }
    } else if (auto* norm = layer->as<RMSNormImpl>()) {
      norm->weight.fill_(1.0);
    }
  }
}

}  // namespace fsdp::models
