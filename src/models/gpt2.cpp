#include "models/gpt2.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/dropout.h>
#include <c10/util/Exception.h>

#include <cmath>

#include "models/flops.h"

namespace fsdp::models {
namespace {

// Two projections of each layer add to the residual stream. With this std, its variance does not grow with depth.
double relative_std_of_residuals(const GPT2Config& config) {
  return 1.0 / std::sqrt(2.0 * static_cast<double>(config.n_layer));
}

AttentionOptions attention_options(const GPT2Config& config, int64_t layer, int64_t head_dim) {
  double scale = config.scale_attn_weights ? 1.0 / std::sqrt(static_cast<double>(head_dim)) : 1.0;
  if (config.scale_attn_by_inverse_layer_idx) scale /= static_cast<double>(layer + 1);
  return {.dropout = config.attn_pdrop, .scale = scale, .in_full_precision = config.reorder_and_upcast_attn};
}

}  // namespace

GPT2AttentionImpl::GPT2AttentionImpl(const GPT2Config& config, int64_t layer, const at::TensorOptions& options)
    : head_dim_(config.n_embd / config.n_head),
      attention_(attention_options(config, layer, head_dim_)),
      residual_dropout_(config.resid_pdrop),
      c_attn_(register_module("c_attn", Conv1D(config.n_embd, 3 * config.n_embd, 1.0, options))),
      c_proj_(register_module("c_proj",
                              Conv1D(config.n_embd, config.n_embd, relative_std_of_residuals(config), options))) {}

at::Tensor GPT2AttentionImpl::forward(const at::Tensor& hidden_states, const Documents& documents) {
  const auto parts = c_attn_(hidden_states).chunk(3, /*dim=*/-1);
  AttentionOptions attention = attention_;
  if (!is_training()) attention.dropout = 0.0;
  const at::Tensor query = split_heads(parts[0], head_dim_);
  const at::Tensor key = split_heads(parts[1], head_dim_);
  const at::Tensor value = split_heads(parts[2], head_dim_);
  const at::Tensor attended = causal_attention(query, key, value, attention, documents);
  return at::dropout(c_proj_(attended), residual_dropout_, is_training());
}

GPT2MLPImpl::GPT2MLPImpl(const GPT2Config& config, const at::TensorOptions& options)
    : activation_(activation_named(config.activation_function)),
      residual_dropout_(config.resid_pdrop),
      c_fc_(register_module("c_fc", Conv1D(config.n_embd, config.n_inner, 1.0, options))),
      c_proj_(register_module("c_proj",
                              Conv1D(config.n_inner, config.n_embd, relative_std_of_residuals(config), options))) {}

at::Tensor GPT2MLPImpl::forward(const at::Tensor& hidden_states) {
  return at::dropout(c_proj_(activation_(c_fc_(hidden_states))), residual_dropout_, is_training());
}

GPT2BlockImpl::GPT2BlockImpl(const GPT2Config& config, int64_t layer, const at::TensorOptions& options)
    : ln_1_(register_module("ln_1", LayerNorm(config.n_embd, config.layer_norm_epsilon, options))),
      attn_(register_module("attn", GPT2Attention(config, layer, options))),
      ln_2_(register_module("ln_2", LayerNorm(config.n_embd, config.layer_norm_epsilon, options))),
      mlp_(register_module("mlp", GPT2MLP(config, options))) {}

at::Tensor GPT2BlockImpl::forward(const at::Tensor& hidden_states, const Documents& documents) {
  const at::Tensor attended = hidden_states + attn_(ln_1_(hidden_states), documents);
  return attended + mlp_(ln_2_(attended));
}

GPT2ModelImpl::GPT2ModelImpl(const GPT2Config& config, const at::TensorOptions& options)
    : embedding_dropout_(config.embd_pdrop),
      wte_(register_module("wte", Embedding(config.vocab_size, config.n_embd, std::nullopt, options))),
      wpe_(register_module("wpe", Embedding(config.n_positions, config.n_embd, std::nullopt, options))),
      h_(register_module("h", torch::nn::ModuleList())) {
  for (int64_t layer = 0; layer < config.n_layer; ++layer) h_->push_back(GPT2Block(config, layer, options));
  ln_f_ = register_module("ln_f", LayerNorm(config.n_embd, config.layer_norm_epsilon, options));
}

at::Tensor GPT2ModelImpl::embed(const at::Tensor& input_ids, const Documents& documents) {
  const at::Tensor positions = documents.are_sequences()
                                   ? at::arange(input_ids.size(1), input_ids.options()).unsqueeze(0)
                                   : documents.positions(input_ids.device());
  const at::Tensor embedded = kept(wte_, "wte")(input_ids);
  return at::dropout(embedded + kept(wpe_, "wpe")(positions), embedding_dropout_, is_training());
}

at::Tensor GPT2ModelImpl::run_blocks(at::Tensor hidden_states, int64_t begin, int64_t end, const Documents& documents) {
  for (int64_t i = begin; i < end; ++i) {
    hidden_states = checkpointing_.forward(i, kept_block<GPT2BlockImpl>(h_, i), hidden_states, documents);
  }
  return hidden_states;
}

at::Tensor GPT2ModelImpl::norm(const at::Tensor& hidden_states) { return kept(ln_f_, "ln_f")(hidden_states); }

void GPT2ModelImpl::keep(const StagePart& part, bool is_tied) {
  h_ = keep_entries(*this, "h", h_, part.begin, part.end);
  if (!part.is_first) drop(*this, "wpe", wpe_);
  if (!part.has_embedding(is_tied)) drop(*this, "wte", wte_);
  if (!part.is_last) drop(*this, "ln_f", ln_f_);
}

GPT2LMHeadModelImpl::GPT2LMHeadModelImpl(const GPT2Config& config, const at::TensorOptions& options)
    : config_(config), transformer_(register_module("transformer", GPT2Model(config, options))) {
  lm_head_ = config.tie_word_embeddings ? Linear(transformer_->embedding_weight())
                                        : Linear(config.n_embd, config.vocab_size, /*with_bias=*/false, options);
  register_module("lm_head", lm_head_);
}

LanguageModelOutput GPT2LMHeadModelImpl::forward(const at::Tensor& input_ids, const at::Tensor& labels) {
  check_tokens("GPT-2", input_ids, labels);
  const Documents documents = documents_in(input_ids);
  return finish(run_blocks(embed(input_ids, documents), 0, num_blocks(), documents), labels);
}

StagedLM::Activations GPT2LMHeadModelImpl::embed(const at::Tensor& input_ids, const Documents& documents) {
  TORCH_CHECK(input_ids.size(1) <= config_.n_positions, "GPT-2: a sequence of ", input_ids.size(1),
              " tokens is longer than n_positions, ", config_.n_positions);
  return {transformer_->embed(input_ids, documents)};
}

void GPT2LMHeadModelImpl::drop_all_but(const StagePart& part) {
  transformer_->keep(part, config_.tie_word_embeddings);
  // The weight of a head that is the embedding belongs to one module, so that it can be a unit of its own.
  if (part.is_last && (part.is_first || !config_.tie_word_embeddings)) return;
  unregister_module("lm_head");
  if (!part.is_last) lm_head_ = nullptr;
}

std::vector<Products> GPT2LMHeadModelImpl::products_of_block(int64_t sequence_length) const {
  const auto width = static_cast<double>(config_.n_embd);
  const double linear_weights = width * (4 * width + 2 * static_cast<double>(config_.n_inner));
  return {{ProductKind::kAddmm, linear_flops(linear_weights, 1)},
          {ProductKind::kSdpa, attention_flops(width, 1, static_cast<double>(sequence_length))}};
}

double GPT2LMHeadModelImpl::flops_per_token(int64_t sequence_length) const {
  return static_cast<double>(config_.n_layer) * sum_of(products_of_block(sequence_length)) +
         linear_flops(static_cast<double>(config_.n_embd * config_.vocab_size), 1);
}

double GPT2LMHeadModelImpl::recomputed_flops_per_token(int64_t sequence_length) const {
  return recomputed_flops_of_all(transformer_->activation_checkpointing(), config_.n_layer,
                                 products_of_block(sequence_length));
}

}  // namespace fsdp::models
