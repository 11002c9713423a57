#include "models/layers.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/rsqrt.h>
#include <c10/util/Exception.h>

#include <unordered_set>

#include "models/experts.h"

namespace fsdp::models {

LinearImpl::LinearImpl(int64_t in_features, int64_t out_features, bool with_bias, const at::TensorOptions& options)
    : weight(register_parameter("weight", at::empty({out_features, in_features}, options))) {
  if (with_bias) bias = register_parameter("bias", at::empty({out_features}, options));
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

Conv1DImpl::Conv1DImpl(int64_t in_features, int64_t out_features, double relative_std, const at::TensorOptions& options)
    : weight(register_parameter("weight", at::empty({in_features, out_features}, options))),
      bias(register_parameter("bias", at::empty({out_features}, options))),
      relative_std(relative_std) {}

at::Tensor Conv1DImpl::forward(const at::Tensor& input) { return at::linear(input, weight.t(), bias); }

EmbeddingImpl::EmbeddingImpl(int64_t num_embeddings, int64_t dim, std::optional<int64_t> padding_idx,
                             const at::TensorOptions& options)
    : weight(register_parameter("weight", at::empty({num_embeddings, dim}, options))), padding_idx(padding_idx) {}

EmbeddingImpl::EmbeddingImpl(const at::Tensor& shared_weight) : weight(register_parameter("weight", shared_weight)) {}

at::Tensor EmbeddingImpl::forward(const at::Tensor& indices) {
  return at::embedding(weight, indices, padding_idx.value_or(-1));
}

RMSNormImpl::RMSNormImpl(int64_t dim, double eps, const at::TensorOptions& options, RMSNormKind kind)
    : weight(register_parameter("weight", at::empty({dim}, options))),
      initial_weight(kind == RMSNormKind::kOnePlusWeight ? 0.0 : 1.0),
      eps_(eps),
      kind_(kind) {}

at::Tensor RMSNormImpl::forward(const at::Tensor& input) {
  const at::Tensor wide = input.scalar_type() == at::kDouble ? input : input.to(at::kFloat);
  // Two statements: the squares are freed before the quotient is allocated.
  const at::Tensor scale = at::rsqrt(wide.pow(2).mean(-1, /*keepdim=*/true) + eps_);
  const at::Tensor quotient = wide * scale;
  switch (kind_) {
    case RMSNormKind::kWideProduct:
      return (weight * quotient).to(input.scalar_type());
    case RMSNormKind::kOnePlusWeight:
      return (quotient * (1.0 + weight.to(quotient.scalar_type()))).to(input.scalar_type());
    case RMSNormKind::kRoundedQuotient:
      break;
  }
  return weight * quotient.to(input.scalar_type());
}

LayerNormImpl::LayerNormImpl(int64_t dim, double eps, const at::TensorOptions& options, bool with_bias)
    : weight(register_parameter("weight", at::empty({dim}, options))), eps_(eps) {
  if (with_bias) bias = register_parameter("bias", at::empty({dim}, options));
}

at::Tensor LayerNormImpl::forward(const at::Tensor& input) {
  return at::layer_norm(input, weight.sizes(), weight, bias, eps_);
}

namespace {

class Initializer {
 public:
  explicit Initializer(double std) : std_(std) {}

  void operator()(LinearImpl& layer) {
    draw(layer.weight, layer.relative_std);
    if (layer.bias.defined()) layer.bias.zero_();
  }
  void operator()(Conv1DImpl& layer) {
    draw(layer.weight, layer.relative_std);
    layer.bias.zero_();
  }
  void operator()(EmbeddingImpl& layer) {
    if (draw(layer.weight, layer.relative_std) && layer.padding_idx) layer.weight.select(0, *layer.padding_idx).zero_();
  }
  void operator()(RouterImpl& layer) { draw(layer.weight, 1.0); }
  void operator()(ExpertsImpl& layer) {
    draw(layer.gate_up_proj, 1.0);
    draw(layer.down_proj, 1.0);
  }
  void operator()(RMSNormImpl& layer) { layer.weight.fill_(layer.initial_weight); }
  void operator()(LayerNormImpl& layer) {
    layer.weight.fill_(1.0);
    if (layer.bias.defined()) layer.bias.zero_();
  }

 private:
  // Returns false if the weight was already drawn for another layer that shares it.
  bool draw(const at::Tensor& weight, double relative_std) {
    if (!drawn_.insert(weight.unsafeGetTensorImpl()).second) return false;
    weight.normal_(0.0, std_ * relative_std);
    return true;
  }

  double std_;
  std::unordered_set<const at::TensorImpl*> drawn_;
};

template <typename... Layers>
void initialize_as_any_of(torch::nn::Module& module, Initializer& initialize) {
  const auto initialize_as = [&](auto* layer) {
    if (layer) initialize(*layer);
  };
  (initialize_as(module.as<Layers>()), ...);
}

}  // namespace

void initialize_parameters(torch::nn::Module& module, double std) {
  const at::NoGradGuard no_grad;
  Initializer initialize(std);
  for (const auto& layer : module.modules()) {
    initialize_as_any_of<LinearImpl, Conv1DImpl, EmbeddingImpl, RouterImpl, ExpertsImpl, RMSNormImpl, LayerNormImpl>(
        *layer, initialize);
  }
}

}  // namespace fsdp::models
