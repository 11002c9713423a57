// Families whose layers have experts in the place of an MLP.
#include <c10/util/StringUtil.h>

#include <algorithm>

#include "models/decoder/families/parsers.h"

namespace fsdp::models::families {
namespace {

// What a family says where its config.json is silent.
struct ExpertDefaults {
  int64_t experts = 0;
  int64_t experts_per_token = 0;
  double router_loss_coefficient = 0.001;
};

// Reads the number of experts, which transformers writes under either of two names.
int64_t parse_expert_count(const ConfigReader& config, int64_t default_value) {
  const std::string key = "num_experts", other = "num_local_experts";
  const int64_t of_key = config.positive_integer(key, default_value);
  const int64_t of_other = config.positive_integer(other, of_key);
  if (config.has(key) && of_key != of_other) config.refuse(other, c10::str("absent, or ", key, ", ", of_key));
  return of_other;
}

void parse_experts(const ConfigReader& config, const ExpertDefaults& defaults, DecoderConfig& decoder) {
  ExpertsConfig& experts = decoder.experts.emplace();
  experts.router.experts = parse_expert_count(config, defaults.experts);
  const std::string per_token = "num_experts_per_tok";
  experts.router.experts_per_token = config.positive_integer(per_token, defaults.experts_per_token);
  if (experts.router.experts_per_token > experts.router.experts) {
    config.refuse(per_token, c10::str("at most the number of experts, ", experts.router.experts));
  }
  const double coefficient = config.number("router_aux_loss_coef", defaults.router_loss_coefficient, 0.0, 1e6);
  if (config.boolean("output_router_logits", false)) experts.router_loss_coefficient = coefficient;
  for (DecoderLayerConfig& layer : decoder.layers) layer.has_experts = true;
}

void parse_renormalization(const ConfigReader& config, DecoderConfig& decoder) {
  decoder.experts->router.renormalizes = config.boolean("norm_topk_prob", false);
  decoder.experts->router.rounds_weights = true;
}

// Qwen's layers have experts at every decoder_sparse_step, but for those of mlp_only_layers.
void parse_sparse_layers(const ConfigReader& config, DecoderConfig& decoder) {
  const int64_t step = config.positive_integer("decoder_sparse_step", 1);
  const std::vector<int64_t> dense = config.integers("mlp_only_layers", 0).value_or(std::vector<int64_t>());
  bool any = false;
  for (size_t i = 0; i < decoder.layers.size(); ++i) {
    const auto index = static_cast<int64_t>(i);
    const bool is_dense = std::find(dense.begin(), dense.end(), index) != dense.end();
    decoder.layers[i].has_experts = !is_dense && (index + 1) % step == 0;
    any |= decoder.layers[i].has_experts;
  }
  if (!any && decoder.experts->router_loss_coefficient) {
    config.refuse("output_router_logits", "false: no layer has experts, so that there is no loss of a router");
  }
}

}  // namespace

DecoderConfig parse_mixtral(const ConfigReader& config) {
  DecoderConfig decoder =
      parse_common(config, "mixtral", {.max_position_embeddings = 131072, .norm_eps = 1e-5, .num_key_value_heads = 8});
  decoder.activation = parse_activation(config, "hidden_act", "silu");
  parse_rope(config, decoder, {.theta = 1000000.0});
  set_window_of_all(parse_window(config, std::nullopt), decoder);
  parse_experts(config, {.experts = 8, .experts_per_token = 2}, decoder);
  decoder.experts->router.renormalizes = true;
  decoder.experts->intermediate_size = decoder.intermediate_size;
  decoder.experts->jitter = config.number("router_jitter_noise", 0.0, 0.0, 1.0);
  return decoder;
}

DecoderConfig parse_qwen2_moe(const ConfigReader& config) {
  DecoderConfig decoder =
      parse_common(config, "qwen2_moe", {.max_position_embeddings = 32768, .num_key_value_heads = 16});
  decoder.activation = parse_activation(config, "hidden_act", "silu");
  decoder.query_key_value_bias = config.boolean("qkv_bias", true);
  parse_rope(config, decoder);
  // Without windows transformers writes 0.
  const bool is_zero = !config.boolean("use_sliding_window", false) && config.integer("sliding_window") == 0;
  const std::optional<int64_t> window = is_zero ? std::nullopt : parse_used_window(config, 4096);
  const auto end = config.integer("max_window_layers").value_or(28);
  const auto types = parse_layer_types(config, decoder.layers.size(),
                                       [&](size_t i) { return window && i % 2 == 0 && static_cast<int64_t>(i) < end; });
  set_windows(config, types, window, decoder);
  parse_experts(config, {.experts = 60, .experts_per_token = 4}, decoder);
  parse_renormalization(config, decoder);
  decoder.experts->intermediate_size = config.positive_integer("moe_intermediate_size", 1408);
  decoder.experts->shared_intermediate_size = config.positive_integer("shared_expert_intermediate_size", 5632);
  parse_sparse_layers(config, decoder);
  return decoder;
}

DecoderConfig parse_qwen3_moe(const ConfigReader& config) {
  DecoderConfig decoder =
      parse_common(config, "qwen3_moe", {.max_position_embeddings = 32768, .num_key_value_heads = 4});
  decoder.activation = parse_activation(config, "hidden_act", "silu");
  decoder.query_key_norm = QueryKeyNorm::kHead;
  parse_attention_bias(config, decoder);
  parse_rope(config, decoder);
  set_window_of_all(parse_used_window(config, 4096), decoder);
  config.integer("max_window_layers");  // published folders have it, and transformers does not read it
  parse_experts(config, {.experts = 128, .experts_per_token = 8}, decoder);
  parse_renormalization(config, decoder);
  decoder.experts->intermediate_size = config.positive_integer("moe_intermediate_size", 768);
  parse_sparse_layers(config, decoder);
  return decoder;
}

DecoderConfig parse_olmoe(const ConfigReader& config) {
  DecoderConfig decoder =
      parse_common(config, "olmoe", {.max_position_embeddings = 4096, .norm_eps = 1e-5, .pad_token_id = 1});
  decoder.activation = parse_activation(config, "hidden_act", "silu");
  decoder.query_key_norm = QueryKeyNorm::kProjection;
  parse_attention_bias(config, decoder);
  parse_rope(config, decoder);
  if (config.has("clip_qkv")) decoder.projection_limit = config.number("clip_qkv", {}, 0.0, 1e9);
  parse_experts(config, {.experts = 64, .experts_per_token = 8, .router_loss_coefficient = 0.01}, decoder);
  parse_renormalization(config, decoder);
  decoder.experts->intermediate_size = decoder.intermediate_size;
  return decoder;
}

}  // namespace fsdp::models::families
