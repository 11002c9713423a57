#include "models/llama.h"

#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/silu.h>
#include <c10/util/Exception.h>

#include <memory>

namespace fsdp::models {
namespace {

constexpr int64_t kIgnoredLabel = -100;

using Activation = at::Tensor (*)(const at::Tensor&);

Activation activation_named(const std::string& name) {
  if (name == "gelu") {
    return [](const at::Tensor& x) { return at::gelu(x); };
  }
  if (name == "gelu_pytorch_tanh") {
    return [](const at::Tensor& x) { return at::gelu(x, "tanh"); };
  }
  if (name == "relu") {
    return [](const at::Tensor& x) { return at::relu(x); };
  }
  return [](const at::Tensor& x) { return at::silu(x); };
}

// [batch, sequence, heads * head_dim] -> [batch, heads, sequence, head_dim]
at::Tensor split_heads(const at::Tensor& x, int64_t head_dim) {
  return x.view({x.size(0), x.size(1), -1, head_dim}).transpose(1, 2);
}

// Position i predicts label i+1; labels move instead of logits, which are far larger.
at::Tensor next_token_loss(const at::Tensor& logits, const at::Tensor& labels) {
  at::Tensor targets = at::full_like(labels, kIgnoredLabel, labels.options(), at::MemoryFormat::Contiguous);
  const int64_t predicted = labels.size(1) - 1;
  targets.narrow(1, 0, predicted).copy_(labels.narrow(1, 1, predicted));
  const at::Tensor wide = logits.scalar_type() == at::kDouble ? logits : logits.to(at::kFloat);
  return at::cross_entropy_loss(wide.view({-1, wide.size(-1)}), targets.view(-1), /*weight=*/{}, at::Reduction::Mean,
                                kIgnoredLabel);
}

}  // namespace

LlamaAttentionImpl::LlamaAttentionImpl(const LlamaConfig& config, const at::TensorOptions& options)
    : head_dim_(config.head_dim), dropout_(config.attention_dropout) {
  const int64_t query_size = config.num_attention_heads * head_dim_;
  const int64_t key_size = config.num_key_value_heads * head_dim_;
  const bool bias = config.attention_bias;
  q_proj_ = register_module("q_proj", Linear(config.hidden_size, query_size, bias, options));
  k_proj_ = register_module("k_proj", Linear(config.hidden_size, key_size, bias, options));
  v_proj_ = register_module("v_proj", Linear(config.hidden_size, key_size, bias, options));
  o_proj_ = register_module("o_proj", Linear(query_size, config.hidden_size, bias, options));
}

at::Tensor LlamaAttentionImpl::forward(const at::Tensor& hidden_states, const RotaryFactors& rotary) {
  const at::Tensor query = apply_rotary(split_heads(q_proj_(hidden_states), head_dim_), rotary);
  const at::Tensor key = apply_rotary(split_heads(k_proj_(hidden_states), head_dim_), rotary);
  const at::Tensor value = split_heads(v_proj_(hidden_states), head_dim_);
  const at::Tensor attended =
      at::scaled_dot_product_attention(query, key, value, /*attn_mask=*/{}, is_training() ? dropout_ : 0.0,
                                       /*is_causal=*/true, /*scale=*/{}, /*enable_gqa=*/true);
  return o_proj_(attended.transpose(1, 2).flatten(2));
}

LlamaMLPImpl::LlamaMLPImpl(const LlamaConfig& config, const at::TensorOptions& options)
    : activation_(activation_named(config.hidden_act)) {
  const auto linear = [&](int64_t in, int64_t out) { return Linear(in, out, config.mlp_bias, options); };
  gate_proj_ = register_module("gate_proj", linear(config.hidden_size, config.intermediate_size));
  up_proj_ = register_module("up_proj", linear(config.hidden_size, config.intermediate_size));
  down_proj_ = register_module("down_proj", linear(config.intermediate_size, config.hidden_size));
}

at::Tensor LlamaMLPImpl::forward(const at::Tensor& hidden_states) {
  return down_proj_(activation_(gate_proj_(hidden_states)) * up_proj_(hidden_states));
}

LlamaDecoderLayerImpl::LlamaDecoderLayerImpl(const LlamaConfig& config, const at::TensorOptions& options)
    : self_attn_(register_module("self_attn", LlamaAttention(config, options))),
      mlp_(register_module("mlp", LlamaMLP(config, options))),
      input_layernorm_(register_module("input_layernorm", RMSNorm(config.hidden_size, config.rms_norm_eps, options))),
      post_attention_layernorm_(
          register_module("post_attention_layernorm", RMSNorm(config.hidden_size, config.rms_norm_eps, options))) {}

at::Tensor LlamaDecoderLayerImpl::forward(const at::Tensor& hidden_states, const RotaryFactors& rotary) {
  const at::Tensor attended = hidden_states + self_attn_(input_layernorm_(hidden_states), rotary);
  return attended + mlp_(post_attention_layernorm_(attended));
}

LlamaModelImpl::LlamaModelImpl(const LlamaConfig& config, const at::TensorOptions& options)
    : rope_(config.rope),
      head_dim_(config.head_dim),
      embed_tokens_(register_module("embed_tokens",
                                    Embedding(config.vocab_size, config.hidden_size, config.pad_token_id, options))),
      layers_(register_module("layers", torch::nn::ModuleList())) {
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    layers_->push_back(LlamaDecoderLayer(config, options));
  }
  norm_ = register_module("norm", RMSNorm(config.hidden_size, config.rms_norm_eps, options));
}

at::Tensor LlamaModelImpl::forward(const at::Tensor& input_ids) {
  at::Tensor hidden_states = embed_tokens_(input_ids);
  const RotaryFactors rotary =
      rotary_factors(rope_, head_dim_, input_ids.size(1), hidden_states.options().requires_grad(false));
  for (size_t i = 0; i < layers_->size(); ++i) {
    hidden_states = checkpointing_.forward(i, layers_->ptr<LlamaDecoderLayerImpl>(i), hidden_states, rotary);
  }
  return norm_(hidden_states);
}

LlamaForCausalLMImpl::LlamaForCausalLMImpl(const LlamaConfig& config, const at::TensorOptions& options)
    : config_(config), model_(register_module("model", LlamaModel(config, options))) {
  lm_head_ = config.tie_word_embeddings ? Linear(model_->embedding_weight())
                                        : Linear(config.hidden_size, config.vocab_size, /*with_bias=*/false, options);
  register_module("lm_head", lm_head_);
}

CausalLMOutput LlamaForCausalLMImpl::forward(const at::Tensor& input_ids, const at::Tensor& labels) {
  TORCH_CHECK(input_ids.dim() == 2, "Llama: input_ids must be [batch, sequence], is of shape ", input_ids.sizes());
  TORCH_CHECK(!labels.defined() || labels.sizes() == input_ids.sizes(), "Llama: labels are of shape ", labels.sizes(),
              ", input_ids of shape ", input_ids.sizes(), "; they must be the same");
  CausalLMOutput output;
  output.logits = lm_head_(model_(input_ids));
  if (labels.defined()) {
    output.loss = next_token_loss(output.logits, labels);
  }
  return output;
}

double LlamaForCausalLMImpl::flops_per_token(int64_t sequence_length) const {
  const auto hidden = static_cast<double>(config_.hidden_size);
  const auto layers = static_cast<double>(config_.num_hidden_layers);
  const auto query_size = static_cast<double>(config_.num_attention_heads * config_.head_dim);
  const auto key_size = static_cast<double>(config_.num_key_value_heads * config_.head_dim);
  const double attention_weights = hidden * (2 * query_size + 2 * key_size);
  const double mlp_weights = 3 * hidden * static_cast<double>(config_.intermediate_size);
  const double head_weights = hidden * static_cast<double>(config_.vocab_size);
  const double linear_weights = layers * (attention_weights + mlp_weights) + head_weights;
  return 6 * linear_weights + 12 * layers * query_size * static_cast<double>(sequence_length);
}

}  // namespace fsdp::models
