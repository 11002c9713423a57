#include "models/decoder/decoder.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/scalar_tensor.h>

#include <utility>

#include "models/flops.h"

namespace fsdp::models {

DecoderLayerImpl::DecoderLayerImpl(const DecoderConfig& config, size_t index, const at::TensorOptions& options)
    : residual_multiplier_(config.residual_multiplier),
      dropout_(config.residual_dropout),
      self_attn_(register_module("self_attn", DecoderAttention(config, config.layers.at(index), options))),
      returns_logits_(config.layers[index].has_experts && config.experts->router_loss_coefficient) {
  if (config.layers[index].has_experts) {
    moe_ = register_module("mlp", DecoderMoe(config, options));
  } else {
    mlp_ = register_module("mlp", DecoderMLP(config, config.intermediate_size, options));
  }
  before_attention_ = make_norm(config.norms.before_attention, config, options);
  after_attention_ = make_norm(config.norms.after_attention, config, options);
  before_mlp_ = make_norm(config.norms.before_mlp, config, options);
  after_mlp_ = make_norm(config.norms.after_mlp, config, options);
}

RMSNorm DecoderLayerImpl::make_norm(const std::string& name, const DecoderConfig& config,
                                    const at::TensorOptions& options) {
  if (name.empty()) return nullptr;
  return register_module(name, RMSNorm(config.hidden_size, config.norm_eps, options, config.norm_kind));
}

at::Tensor DecoderLayerImpl::add(const at::Tensor& residual, at::Tensor output, RMSNorm& norm_after) const {
  if (norm_after) output = norm_after(output);
  if (residual_multiplier_ != 1.0) output = output * residual_multiplier_;
  if (dropout_ > 0 && is_training()) output = at::dropout(output, dropout_, /*train=*/true);
  return residual + output;
}

DecoderLayerImpl::Output DecoderLayerImpl::forward(const at::Tensor& hidden_states, const RotaryFactors& rotary,
                                                   const Documents& documents) {
  const auto normed = [](RMSNorm& norm, const at::Tensor& x) { return norm ? norm(x) : x; };
  const at::Tensor attended =
      add(hidden_states, self_attn_(normed(before_attention_, hidden_states), rotary, documents), after_attention_);
  const at::Tensor input = normed(before_mlp_, attended);
  if (mlp_) return {add(attended, mlp_(input), after_mlp_), at::Tensor()};
  const DecoderMoeImpl::Output output = moe_(input);
  return {add(attended, output.hidden_states, after_mlp_), returns_logits_ ? output.router_logits : at::Tensor()};
}

DecoderModelImpl::DecoderModelImpl(const DecoderConfig& config, const at::TensorOptions& options)
    : embedding_multiplier_(config.embedding_multiplier),
      rounds_embedding_multiplier_(config.rounds_embedding_multiplier),
      ropes_(config.ropes),
      embed_tokens_(register_module("embed_tokens",
                                    Embedding(config.vocab_size, config.hidden_size, config.pad_token_id, options))),
      layers_(register_module("layers", torch::nn::ModuleList())) {
  for (size_t i = 0; i < config.layers.size(); ++i) {
    layers_->push_back(DecoderLayer(config, i, options));
    rope_of_layer_.push_back(config.layers[i].rope);
  }
  norm_ = register_module("norm", RMSNorm(config.hidden_size, config.norm_eps, options, config.norm_kind));
}

at::Tensor DecoderModelImpl::embed(const at::Tensor& input_ids) {
  at::Tensor embedded = kept(embed_tokens_, "embed_tokens")(input_ids);
  if (embedding_multiplier_ == 1.0) return embedded;
  if (!rounds_embedding_multiplier_) return embedded * embedding_multiplier_;
  const at::Tensor rounded = at::scalar_tensor(embedding_multiplier_, at::kFloat).to(embedded.scalar_type());
  return embedded * rounded.item<double>();
}

std::vector<RotaryFactors> DecoderModelImpl::all_rotary_factors(int64_t sequence, const Documents& documents,
                                                                const at::TensorOptions& options) const {
  std::vector<RotaryFactors> factors;
  for (const RopeConfig& rope : ropes_) {
    factors.push_back(rotary_factors(rope, documents.longest(sequence), options));
  }
  if (documents.are_sequences()) return factors;
  const at::Tensor positions = documents.positions(options.device());
  for (RotaryFactors& one : factors) one = at_positions(one, positions);
  return factors;
}

StagedLM::Activations DecoderModelImpl::run_layers(StagedLM::Activations activations, int64_t begin, int64_t end,
                                                   int64_t parts, const Documents& documents) {
  at::Tensor hidden_states = std::move(activations.at(0));
  const std::vector<RotaryFactors> factors =
      all_rotary_factors(hidden_states.size(1) * parts, documents, hidden_states.options().requires_grad(false));
  for (int64_t i = begin; i < end; ++i) {
    const auto index = static_cast<size_t>(i);
    const RotaryFactors rotary = rope_of_layer_[index] ? factors.at(*rope_of_layer_[index]) : RotaryFactors();
    at::Tensor router_logits;
    std::tie(hidden_states, router_logits) =
        checkpointing_.forward(i, kept_block<DecoderLayerImpl>(layers_, i), hidden_states, rotary, documents);
    if (router_logits.defined()) activations.push_back(router_logits);
  }
  activations[0] = std::move(hidden_states);
  return activations;
}

at::Tensor DecoderModelImpl::norm(const at::Tensor& hidden_states) { return kept(norm_, "norm")(hidden_states); }

void DecoderModelImpl::keep(const StagePart& part, bool is_tied) {
  layers_ = keep_entries(*this, "layers", layers_, part.begin, part.end);
  if (!part.has_embedding(is_tied)) drop(*this, "embed_tokens", embed_tokens_);
  if (!part.is_last) drop(*this, "norm", norm_);
}

DecoderForCausalLMImpl::DecoderForCausalLMImpl(const DecoderConfig& config, const at::TensorOptions& options)
    : config_(config), model_(register_module("model", DecoderModel(config, options))) {
  lm_head_ = config.tie_word_embeddings ? Linear(model_->embedding_weight())
                                        : Linear(config.hidden_size, config.vocab_size, /*with_bias=*/false, options);
  register_module("lm_head", lm_head_);
}

FolderNames DecoderForCausalLMImpl::folder_names() const {
  FolderNames names{.base_model = "model", .ignored = {".rotary_emb.inv_freq"}};
  if (!config_.is_part) return names;
  names.renamed_prefixes = {{"", "language_model."}, {"model.", "model.language_model."}};
  names.other_parts = {"vision_tower.", "multi_modal_projector.", "model.vision_tower.",
                       "model.multi_modal_projector."};
  return names;
}

LanguageModelOutput DecoderForCausalLMImpl::forward(const at::Tensor& input_ids, const at::Tensor& labels) {
  check_tokens(config_.model_type.c_str(), input_ids, labels);
  const Documents documents = documents_in(input_ids);
  return finish(run_blocks(embed(input_ids, documents), 0, num_blocks(), documents), labels);
}

LanguageModelOutput DecoderForCausalLMImpl::finish(Activations activations, const at::Tensor& labels) {
  const at::Tensor normed = model_->norm(std::exchange(activations.at(0), at::Tensor()));
  LanguageModelOutput output = predict(lm_head_, normed, next_token_labels(labels), config_.logits);
  if (output.loss.defined() && activations.size() > 1) {
    const ExpertsConfig& experts = *config_.experts;
    std::vector<at::Tensor> router_logits(activations.begin() + 1, activations.end());
    // The loss is that of all positions, in whatever order.
    if (split_positions()) router_logits = {split_positions()->gather(at::cat(router_logits))};
    output.loss = output.loss + load_balancing_loss(router_logits, experts.router.experts_per_token) *
                                    *experts.router_loss_coefficient;
  }
  return output;
}

void DecoderForCausalLMImpl::drop_all_but(const StagePart& part) {
  model_->keep(part, config_.tie_word_embeddings);
  // The weight of a head that is the embedding belongs to one module, so that it can be a unit of its own.
  if (part.is_last && (part.is_first || !config_.tie_word_embeddings)) return;
  unregister_module("lm_head");
  if (!part.is_last) lm_head_ = nullptr;
}

std::vector<Products> DecoderForCausalLMImpl::products_of_layer(const DecoderLayerConfig& layer,
                                                                int64_t sequence_length) const {
  const auto hidden = static_cast<double>(config_.hidden_size);
  const auto query_size = static_cast<double>(config_.num_attention_heads * config_.head_dim);
  const auto key_size = static_cast<double>(config_.num_key_value_heads * config_.head_dim);
  const auto keys = static_cast<double>(attended_keys(sequence_length, layer.window));
  const ProductKind attention = config_.attention_softcap ? ProductKind::kBmm : ProductKind::kSdpa;
  return {{linear_kind(config_.query_key_value_bias), linear_flops(hidden * (query_size + 2 * key_size), 1)},
          {attention, attention_flops(query_size, 1, keys)},
          {linear_kind(config_.output_bias), linear_flops(hidden * query_size, 1)},
          {linear_kind(config_.mlp_bias), linear_flops(mlp_weights(layer), 1)}};
}

double DecoderForCausalLMImpl::mlp_weights(const DecoderLayerConfig& layer) const {
  const auto hidden = static_cast<double>(config_.hidden_size);
  const auto of_mlp = [&](int64_t intermediate) { return 3 * hidden * static_cast<double>(intermediate); };
  if (!layer.has_experts) return of_mlp(config_.intermediate_size);
  const ExpertsConfig& experts = *config_.experts;
  const auto per_token = static_cast<double>(experts.router.experts_per_token);
  const double routed =
      hidden * static_cast<double>(experts.router.experts) + per_token * of_mlp(experts.intermediate_size);
  const auto& shared = experts.shared_intermediate_size;
  return shared ? routed + of_mlp(*shared) + hidden : routed;
}

double DecoderForCausalLMImpl::flops_per_token(int64_t sequence_length) const {
  double flops = linear_flops(static_cast<double>(config_.hidden_size * config_.vocab_size), 1);
  for (const DecoderLayerConfig& layer : config_.layers) flops += sum_of(products_of_layer(layer, sequence_length));
  return flops;
}

double DecoderForCausalLMImpl::recomputed_flops_per_token(int64_t sequence_length) const {
  double flops = 0;
  for (size_t i = 0; i < config_.layers.size(); ++i) {
    flops += recomputed_flops(model_->activation_checkpointing(), static_cast<int64_t>(i),
                              products_of_layer(config_.layers[i], sequence_length));
  }
  return flops;
}

}  // namespace fsdp::models
