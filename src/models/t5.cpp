#include "models/t5.h"

#include <ATen/Dispatch.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <cmath>
#include <limits>

#include "models/flops.h"
#include "models/loss.h"

namespace fsdp::models {
namespace {

double inverse_root(int64_t size) { return 1.0 / std::sqrt(static_cast<double>(size)); }

// A layer that is drawn with the std of transformers: initializer_factor times the inverse square root of `fan`.
Linear linear(int64_t in_features, int64_t out_features, int64_t fan, const at::TensorOptions& options) {
  Linear layer(in_features, out_features, /*with_bias=*/false, options);
  layer->relative_std = inverse_root(fan);
  return layer;
}

RMSNorm norm(const T5Config& config, const at::TensorOptions& options) {
  RMSNorm layer(config.d_model, config.layer_norm_epsilon, options);
  layer->initial_weight = config.initializer_factor;
  return layer;
}

// Returns `bias` where `mask` is true, else the lowest number: a query that may attend to no key attends to all keys
// equally.
at::Tensor masked(const at::Tensor& bias, const at::Tensor& mask) {
  if (!mask.defined()) return bias;
  const double lowest = AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, bias.scalar_type(), "T5", [] {
    return static_cast<double>(std::numeric_limits<scalar_t>::lowest());
  });
  return at::where(mask, bias, lowest);
}

// Clamps fp16 values to keep them finite, like transformers.
at::Tensor without_infinities(const at::Tensor& x) {
  if (x.scalar_type() != at::kHalf) return x;
  const double largest = std::numeric_limits<at::Half>::max();
  const at::Tensor limit = at::where(x.isinf().any(), largest - 1000, largest).to(at::kHalf);
  return x.clamp(-limit, limit);
}

// Returns the tokens that the decoder reads to predict the labels.
at::Tensor shifted_right(const at::Tensor& labels, const T5Config& config) {
  const at::Tensor start = labels.new_full({labels.size(0), 1}, config.decoder_start_token_id);
  const at::Tensor inputs = at::cat({start, labels.narrow(1, 0, labels.size(1) - 1)}, 1);
  return inputs.masked_fill(inputs == kIgnoredLabel, config.pad_token_id);
}

void check_inputs(const at::Tensor& input_ids, const at::Tensor& labels, const at::Tensor& attention_mask) {
  TORCH_CHECK(input_ids.dim() == 2, "T5: input_ids must be [batch, source], is of shape ", input_ids.sizes());
  TORCH_CHECK(labels.defined(), "T5: labels are missing: the decoder reads them");
  TORCH_CHECK(labels.dim() == 2 && labels.size(0) == input_ids.size(0) && labels.size(1) >= 1,
              "T5: labels must be [batch, target] with the batch of input_ids, ", input_ids.size(0),
              ", and a target; they are of shape ", labels.sizes());
  TORCH_CHECK(!attention_mask.defined() || attention_mask.sizes() == input_ids.sizes(),
              "T5: attention_mask is of shape ", attention_mask.sizes(), ", input_ids of shape ", input_ids.sizes(),
              "; they must be the same");
}

}  // namespace

T5AttentionImpl::T5AttentionImpl(const T5Config& config, const at::TensorOptions& options)
    : head_dim_(config.d_kv), attention_{.dropout = config.dropout_rate, .scale = 1.0} {
  const int64_t width = config.d_model, inner = config.inner_dim();
  q_ = register_module("q", linear(width, inner, width * config.d_kv, options));
  k_ = register_module("k", linear(width, inner, width, options));
  v_ = register_module("v", linear(width, inner, width, options));
  o_ = register_module("o", linear(inner, width, inner, options));
}

void T5AttentionImpl::add_position_bias(const T5Config& config, T5Half half, const at::TensorOptions& options) {
  buckets_ = {.count = config.relative_attention_num_buckets,
              .max_distance = config.relative_attention_max_distance,
              .bidirectional = half == T5Half::kEncoder};
  relative_attention_bias_ =
      register_module("relative_attention_bias", Embedding(buckets_.count, config.num_heads, std::nullopt, options));
  relative_attention_bias_->relative_std = inverse_root(config.d_model);
}

at::Tensor T5AttentionImpl::forward(const at::Tensor& hidden_states, const at::Tensor& key_states,
                                    const at::Tensor& bias) {
  AttentionOptions attention = attention_;
  if (!is_training()) attention.dropout = 0.0;
  const at::Tensor query = split_heads(q_(hidden_states), head_dim_);
  const at::Tensor key = split_heads(k_(key_states), head_dim_);
  const at::Tensor value = split_heads(v_(key_states), head_dim_);
  return o_(biased_attention(query, key, value, bias, attention));
}

at::Tensor T5AttentionImpl::position_bias(int64_t length) {
  if (relative_attention_bias_.is_empty()) return {};
  const at::Device device = relative_attention_bias_->weight.device();
  const at::Tensor bias = relative_attention_bias_(relative_position_buckets(buckets_, length, device));
  return bias.permute({2, 0, 1}).unsqueeze(0).contiguous();
}

T5LayerAttentionImpl::T5LayerAttentionImpl(const char* name, const T5Config& config, const at::TensorOptions& options)
    : dropout_(config.dropout_rate),
      attention_(register_module(name, T5Attention(config, options))),
      layer_norm_(register_module("layer_norm", norm(config, options))) {}

at::Tensor T5LayerAttentionImpl::forward(const at::Tensor& hidden_states, const at::Tensor& key_states,
                                         const at::Tensor& bias) {
  const at::Tensor normed = layer_norm_(hidden_states);
  const at::Tensor attended = attention_(normed, key_states.defined() ? key_states : normed, bias);
  return hidden_states + at::dropout(attended, dropout_, is_training());
}

T5DenseImpl::T5DenseImpl(const T5Config& config, const at::TensorOptions& options)
    : activation_(activation_named(config.dense_act_fn)), dropout_(config.dropout_rate) {
  const int64_t width = config.d_model;
  wi_ = register_module(config.is_gated_act ? "wi_0" : "wi", linear(width, config.d_ff, width, options));
  if (config.is_gated_act) gate_ = register_module("wi_1", linear(width, config.d_ff, width, options));
  wo_ = register_module("wo", linear(config.d_ff, width, config.d_ff, options));
}

at::Tensor T5DenseImpl::forward(const at::Tensor& hidden_states) {
  at::Tensor inner = activation_(wi_(hidden_states));
  if (!gate_.is_empty()) inner = inner * gate_(hidden_states);
  return wo_(at::dropout(inner, dropout_, is_training()));
}

T5LayerFFImpl::T5LayerFFImpl(const T5Config& config, const at::TensorOptions& options)
    : dropout_(config.dropout_rate),
      dense_(register_module("DenseReluDense", T5Dense(config, options))),
      layer_norm_(register_module("layer_norm", norm(config, options))) {}

at::Tensor T5LayerFFImpl::forward(const at::Tensor& hidden_states) {
  return hidden_states + at::dropout(dense_(layer_norm_(hidden_states)), dropout_, is_training());
}

T5BlockImpl::T5BlockImpl(const T5Config& config, T5Half half, int64_t index, const at::TensorOptions& options)
    : self_attention_("SelfAttention", config, options) {
  if (index == 0) self_attention_->attention()->add_position_bias(config, half, options);
  const auto layer = register_module("layer", torch::nn::ModuleList());
  layer->push_back(self_attention_);
  if (half == T5Half::kDecoder) {
    cross_attention_ = T5LayerAttention("EncDecAttention", config, options);
    layer->push_back(cross_attention_);
  }
  feed_forward_ = T5LayerFF(config, options);
  layer->push_back(feed_forward_);
}

std::tuple<at::Tensor, at::Tensor> T5BlockImpl::forward(const at::Tensor& hidden_states, const at::Tensor& bias,
                                                        const at::Tensor& mask, const at::Tensor& encoder_states,
                                                        const at::Tensor& encoder_bias) {
  const at::Tensor own_bias = self_attention_->attention()->position_bias(hidden_states.size(1));
  const at::Tensor new_bias = own_bias.defined() ? masked(own_bias, mask) : at::Tensor();
  at::Tensor output =
      without_infinities(self_attention_(hidden_states, at::Tensor(), own_bias.defined() ? new_bias : bias));
  if (!cross_attention_.is_empty()) {
    // Keys and values share one view, so that their gradients are added here before those of other blocks, whether or
    // not the block is recomputed.
    output = without_infinities(cross_attention_(output, encoder_states.view_as(encoder_states), encoder_bias));
  }
  return {without_infinities(feed_forward_(output)), new_bias};
}

T5StackImpl::T5StackImpl(const T5Config& config, T5Half half, const at::Tensor& embedding,
                         const at::TensorOptions& options)
    : half_(half),
      dropout_(config.dropout_rate),
      embed_tokens_(register_module("embed_tokens", Embedding(embedding))),
      block_(register_module("block", torch::nn::ModuleList())) {
  const int64_t blocks = half == T5Half::kEncoder ? config.num_layers : config.num_decoder_layers;
  for (int64_t index = 0; index < blocks; ++index) block_->push_back(T5Block(config, half, index, options));
  final_layer_norm_ = register_module("final_layer_norm", norm(config, options));
}

at::Tensor T5StackImpl::forward(const at::Tensor& input_ids, const at::Tensor& source_mask,
                                const at::Tensor& encoder_states) {
  at::Tensor hidden_states = at::dropout(embed_tokens_(input_ids), dropout_, is_training());
  at::Tensor mask = source_mask, encoder_bias, bias;
  if (half_ == T5Half::kDecoder) {
    const int64_t length = input_ids.size(1);
    mask = at::ones({length, length}, input_ids.options().dtype(at::kBool)).tril();
    if (source_mask.defined()) encoder_bias = masked(at::zeros({}, hidden_states.options()), source_mask);
  }
  for (size_t i = 0; i < block_->size(); ++i) {
    const auto block = block_->ptr<T5BlockImpl>(i);
    const auto [output, new_bias] =
        checkpointing_.forward(static_cast<int64_t>(i), block, hidden_states, bias, mask, encoder_states, encoder_bias);
    hidden_states = output;
    if (new_bias.defined()) bias = new_bias;
  }
  return at::dropout(final_layer_norm_(hidden_states), dropout_, is_training());
}

T5ForConditionalGenerationImpl::T5ForConditionalGenerationImpl(const T5Config& config, const at::TensorOptions& options)
    : config_(config),
      shared_(register_module("shared", Embedding(config.vocab_size, config.d_model, std::nullopt, options))),
      encoder_(register_module("encoder", T5Stack(config, T5Half::kEncoder, shared_->weight, options))),
      decoder_(register_module("decoder", T5Stack(config, T5Half::kDecoder, shared_->weight, options))),
      lm_head_(register_module("lm_head", config.tie_word_embeddings
                                              ? Linear(shared_->weight)
                                              : linear(config.d_model, config.vocab_size, /*fan=*/1, options))) {}

LanguageModelOutput T5ForConditionalGenerationImpl::forward(const at::Tensor& input_ids, const at::Tensor& labels,
                                                            const at::Tensor& attention_mask) {
  check_inputs(input_ids, labels, attention_mask);
  at::Tensor source_mask;
  if (attention_mask.defined()) source_mask = attention_mask.to(at::kBool).unsqueeze(1).unsqueeze(1);
  const at::Tensor encoder_states = encoder_(input_ids, source_mask);
  at::Tensor decoded = decoder_(shifted_right(labels, config_), source_mask, encoder_states);
  if (config_.scale_decoder_outputs) decoded = decoded * inverse_root(config_.d_model);
  return predict(lm_head_, decoded, labels);
}

void T5ForConditionalGenerationImpl::set_activation_checkpointing(const CheckpointPolicy& policy) {
  encoder_->set_activation_checkpointing(policy);
  decoder_->set_activation_checkpointing(policy);
}

T5ForConditionalGenerationImpl::BlockProducts T5ForConditionalGenerationImpl::products(int64_t source_length,
                                                                                       int64_t target_length) const {
  const auto source = static_cast<double>(source_length), target = static_cast<double>(target_length);
  const auto width = static_cast<double>(config_.d_model), inner = static_cast<double>(config_.inner_dim());
  const double dense = static_cast<double>(config_.d_ff) * (config_.is_gated_act ? 3 : 2);
  const double own = width * (4 * inner + dense);  // weights that a block applies to its own tokens
  // Cross-attention computes its keys and values from the source tokens.
  const double to_source = linear_flops(width * 2 * inner, target) + linear_flops(width * 2 * inner, source);
  return {.encoder = {{ProductKind::kMm, linear_flops(own, source)},
                      {ProductKind::kSdpaOrBmm, attention_flops(inner, source, source)}},
          .decoder = {{ProductKind::kMm, linear_flops(own, target) + to_source},
                      {ProductKind::kSdpaOrBmm,
                       attention_flops(inner, target, target) + attention_flops(inner, target, source)}}};
}

double T5ForConditionalGenerationImpl::flops_per_sample(int64_t source_length, int64_t target_length) const {
  const BlockProducts block = products(source_length, target_length);
  return static_cast<double>(config_.num_layers) * sum_of(block.encoder) +
         static_cast<double>(config_.num_decoder_layers) * sum_of(block.decoder) +
         linear_flops(static_cast<double>(config_.d_model * config_.vocab_size), static_cast<double>(target_length));
}

double T5ForConditionalGenerationImpl::recomputed_flops_per_sample(int64_t source_length, int64_t target_length) const {
  const BlockProducts block = products(source_length, target_length);
  return recomputed_flops_of_all(encoder_->activation_checkpointing(), config_.num_layers, block.encoder) +
         recomputed_flops_of_all(decoder_->activation_checkpointing(), config_.num_decoder_layers, block.decoder);
}

}  // namespace fsdp::models
