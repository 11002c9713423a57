#include "models/llama.h"

#include "models/attention.h"
#include "models/flops.h"

namespace fsdp::models {

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
  return o_proj_(causal_attention(query, key, value, {.dropout = is_training() ? dropout_ : 0.0}));
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
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) layers_->push_back(LlamaDecoderLayer(config, options));
  norm_ = register_module("norm", RMSNorm(config.hidden_size, config.rms_norm_eps, options));
}

at::Tensor LlamaModelImpl::forward(const at::Tensor& input_ids) {
  at::Tensor hidden_states = embed_tokens_(input_ids);
  const RotaryFactors rotary =
      rotary_factors(rope_, head_dim_, input_ids.size(1), hidden_states.options().requires_grad(false));
  for (size_t i = 0; i < layers_->size(); ++i) {
    hidden_states =
        checkpointing_.forward(static_cast<int64_t>(i), layers_->ptr<LlamaDecoderLayerImpl>(i), hidden_states, rotary);
  }
  return norm_(hidden_states);
}

LlamaForCausalLMImpl::LlamaForCausalLMImpl(const LlamaConfig& config, const at::TensorOptions& options)
    : config_(config), model_(register_module("model", LlamaModel(config, options))) {
  lm_head_ = config.tie_word_embeddings ? Linear(model_->embedding_weight())
                                        : Linear(config.hidden_size, config.vocab_size, /*with_bias=*/false, options);
  register_module("lm_head", lm_head_);
}

LanguageModelOutput LlamaForCausalLMImpl::forward(const at::Tensor& input_ids, const at::Tensor& labels) {
  check_tokens("Llama", input_ids, labels);
  return predict(lm_head_, model_(input_ids), next_token_labels(labels));
}

std::vector<Products> LlamaForCausalLMImpl::products_of_layer(int64_t sequence_length) const {
  const auto hidden = static_cast<double>(config_.hidden_size);
  const auto query_size = static_cast<double>(config_.num_attention_heads * config_.head_dim);
  const auto key_size = static_cast<double>(config_.num_key_value_heads * config_.head_dim);
  const double mlp_size = 3 * static_cast<double>(config_.intermediate_size);
  return {{linear_kind(config_.attention_bias), linear_flops(hidden * (2 * query_size + 2 * key_size), 1)},
          {ProductKind::kSdpa, attention_flops(query_size, 1, static_cast<double>(sequence_length))},
          {linear_kind(config_.mlp_bias), linear_flops(hidden * mlp_size, 1)}};
}

double LlamaForCausalLMImpl::flops_per_token(int64_t sequence_length) const {
  return static_cast<double>(config_.num_hidden_layers) * sum_of(products_of_layer(sequence_length)) +
         linear_flops(static_cast<double>(config_.hidden_size * config_.vocab_size), 1);
}

double LlamaForCausalLMImpl::recomputed_flops_per_token(int64_t sequence_length) const {
  return recomputed_flops_of_all(model_->activation_checkpointing(), config_.num_hidden_layers,
                                 products_of_layer(sequence_length));
}

}  // namespace fsdp::models
