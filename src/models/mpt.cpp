#include "models/mpt.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/gelu.h>
#include <c10/util/Exception.h>

#include <algorithm>

#include "models/alibi.h"
#include "models/flops.h"

namespace fsdp::models {
namespace {

constexpr int64_t kExpansion = 4;  // of the MLP

Linear linear(int64_t in_features, int64_t out_features, const at::TensorOptions& options) {
  return Linear(in_features, out_features, /*with_bias=*/false, options);
}

LayerNorm norm_of(const MptConfig& config, const at::TensorOptions& options) {
  return LayerNorm(config.d_model, config.layer_norm_epsilon, options, /*with_bias=*/false);
}

}  // namespace

MptAttentionImpl::MptAttentionImpl(const MptConfig& config, const at::TensorOptions& options)
    : head_dim_(config.d_model / config.n_heads),
      limit_(config.clip_qkv),
      attention_{.dropout = config.attn_pdrop, .scale = config.softmax_scale},
      wqkv_(register_module("Wqkv", linear(config.d_model, 3 * config.d_model, options))),
      out_proj_(register_module("out_proj", linear(config.d_model, config.d_model, options))) {}

at::Tensor MptAttentionImpl::forward(const at::Tensor& hidden_states, const at::Tensor& bias,
                                     const Documents& documents) {
  at::Tensor projected = wqkv_(hidden_states);
  if (limit_) projected = projected.clamp(-*limit_, *limit_);
  const auto parts = projected.chunk(3, /*dim=*/-1);
  AttentionOptions attention = attention_;
  if (!is_training()) attention.dropout = 0.0;
  const auto heads = [&](const at::Tensor& part) { return split_heads(part, head_dim_); };
  TORCH_CHECK(parts[0].size(-1) == bias.size(1) * head_dim_, "MPT: this rank has ", parts[0].size(-1) / head_dim_,
              " heads, and biases for ", bias.size(1), ". Ranks that split the model must know which heads they have: ",
              "let CausalLM::split_over make the options of tensor parallelism");
  return out_proj_(biased_attention(heads(parts[0]), heads(parts[1]), heads(parts[2]), bias, attention, documents));
}

MptMLPImpl::MptMLPImpl(const MptConfig& config, const at::TensorOptions& options)
    : up_proj_(register_module("up_proj", linear(config.d_model, kExpansion * config.d_model, options))),
      down_proj_(register_module("down_proj", linear(kExpansion * config.d_model, config.d_model, options))) {}

at::Tensor MptMLPImpl::forward(const at::Tensor& hidden_states) {
  return down_proj_(at::gelu(up_proj_(hidden_states)));
}

MptBlockImpl::MptBlockImpl(const MptConfig& config, const at::TensorOptions& options)
    : residual_dropout_(config.attn_pdrop),
      norm_1_(register_module("norm_1", norm_of(config, options))),
      attn_(register_module("attn", MptAttention(config, options))),
      norm_2_(register_module("norm_2", norm_of(config, options))),
      ffn_(register_module("ffn", MptMLP(config, options))) {}

at::Tensor MptBlockImpl::forward(const at::Tensor& hidden_states, const at::Tensor& bias, const Documents& documents) {
  const auto dropped = [&](const at::Tensor& x) { return at::dropout(x, residual_dropout_, is_training()); };
  const at::Tensor attended = hidden_states + dropped(attn_(norm_1_(hidden_states), bias, documents));
  return attended + dropped(ffn_(norm_2_(attended)));
}

MptModelImpl::MptModelImpl(const MptConfig& config, const at::TensorOptions& options)
    : wte_(register_module("wte", Embedding(config.vocab_size, config.d_model, std::nullopt, options))),
      blocks_(register_module("blocks", torch::nn::ModuleList())) {
  for (int64_t layer = 0; layer < config.n_layers; ++layer) blocks_->push_back(MptBlock(config, options));
  norm_f_ = register_module("norm_f", norm_of(config, options));
}

at::Tensor MptModelImpl::run_blocks(at::Tensor hidden_states, int64_t begin, int64_t end, const at::Tensor& bias,
                                    const Documents& documents) {
  for (int64_t i = begin; i < end; ++i) {
    hidden_states = checkpointing_.forward(i, kept_block<MptBlockImpl>(blocks_, i), hidden_states, bias, documents);
  }
  return hidden_states;
}

void MptModelImpl::keep(const StagePart& part, bool is_tied) {
  blocks_ = keep_entries(*this, "blocks", blocks_, part.begin, part.end);
  if (!part.has_embedding(is_tied)) drop(*this, "wte", wte_);
  if (!part.is_last) drop(*this, "norm_f", norm_f_);
}

MptForCausalLMImpl::MptForCausalLMImpl(const MptConfig& config, const at::TensorOptions& options)
    : config_(config), transformer_(register_module("transformer", MptModel(config, options))) {
  lm_head_ = config.tie_word_embeddings ? Linear(transformer_->embedding_weight())
                                        : linear(config.d_model, config.vocab_size, options);
  register_module("lm_head", lm_head_);
}

LanguageModelOutput MptForCausalLMImpl::forward(const at::Tensor& input_ids, const at::Tensor& labels) {
  check_tokens("MPT", input_ids, labels);
  const Documents documents = documents_in(input_ids);
  return finish(run_blocks(embed(input_ids, documents), 0, num_blocks(), documents), labels);
}

StagedLM::Activations MptForCausalLMImpl::embed(const at::Tensor& input_ids, const Documents& /*documents*/) {
  TORCH_CHECK(input_ids.size(1) <= config_.max_seq_len, "MPT: a sequence of ", input_ids.size(1),
              " tokens is longer than max_seq_len, ", config_.max_seq_len);
  return {transformer_->embed(input_ids)};
}

StagedLM::Activations MptForCausalLMImpl::run_blocks(Activations activations, int64_t begin, int64_t end,
                                                     const Documents& documents) {
  at::Tensor hidden_states = std::move(activations.at(0));
  if (begin == end) return {hidden_states};
  const int64_t parts = split_positions() ? split_positions()->parts() : 1;
  const auto [first_head, heads] = own_groups(config_.n_heads);
  const at::Tensor bias =
      alibi_bias({config_.n_heads, first_head, heads}, documents.longest(hidden_states.size(1) * parts),
                 hidden_states.options().requires_grad(false));
  return {transformer_->run_blocks(std::move(hidden_states), begin, end, bias, documents)};
}

void MptForCausalLMImpl::drop_all_but(const StagePart& part) {
  transformer_->keep(part, config_.tie_word_embeddings);
  // The weight of a head that is the embedding belongs to one module, so that it can be a unit of its own.
  if (part.is_last && (part.is_first || !config_.tie_word_embeddings)) return;
  unregister_module("lm_head");
  if (!part.is_last) lm_head_ = nullptr;
}

std::vector<Products> MptForCausalLMImpl::products_of_block(int64_t sequence_length) const {
  const auto width = static_cast<double>(config_.d_model);
  const double linear_weights = width * width * (4 + 2 * static_cast<double>(kExpansion));
  return {{ProductKind::kMm, linear_flops(linear_weights, 1)},
          {ProductKind::kSdpa, attention_flops(width, 1, static_cast<double>(sequence_length))}};
}

double MptForCausalLMImpl::flops_per_token(int64_t sequence_length) const {
  return static_cast<double>(config_.n_layers) * sum_of(products_of_block(sequence_length)) +
         linear_flops(static_cast<double>(config_.d_model * config_.vocab_size), 1);
}

double MptForCausalLMImpl::recomputed_flops_per_token(int64_t sequence_length) const {
  return recomputed_flops_of_all(transformer_->activation_checkpointing(), config_.n_layers,
                                 products_of_block(sequence_length));
}

std::vector<TensorParallelRule> MptForCausalLMImpl::tensor_parallel_plan() const {
  TORCH_CHECK(config_.attn_pdrop == 0, "tensor parallelism: mpt draws random numbers in forward (attn_pdrop ",
              config_.attn_pdrop, "), which would differ between the ranks that hold its parts. Set it to 0 in ",
              "config.json");
  std::vector<TensorParallelRule> rules;
  const auto modules = named_modules();
  // Stages of a pipeline may have no blocks.
  const bool has_blocks =
      std::any_of(modules.begin(), modules.end(), [](const auto& module) { return module.key().ends_with(".attn"); });
  if (has_blocks) {
    const std::string block = "transformer.blocks.*.";
    const int64_t size = config_.d_model, heads = config_.n_heads;
    rules.push_back({block + "attn.Wqkv", SplitStyle::kColwise, heads, {size, size, size}});
    rules.push_back({block + "attn.out_proj", SplitStyle::kRowwise, heads});
    rules.push_back({block + "ffn.up_proj", SplitStyle::kColwise});
    rules.push_back({block + "ffn.down_proj", SplitStyle::kRowwise});
    if (split_positions()) {
      for (const char* norm : {"norm_1", "norm_2"}) rules.push_back({block + norm, SplitStyle::kSharedByParts});
    }
  }
  if (split_positions() && modules.contains("transformer.norm_f")) {
    rules.push_back({"transformer.norm_f", SplitStyle::kSharedByParts});
  }
  add_vocabulary("transformer.wte", !lm_head_.is_empty(), rules);
  return rules;
}

}  // namespace fsdp::models
