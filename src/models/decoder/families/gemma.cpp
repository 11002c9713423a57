// Gemma 1 to 3.
#include <cmath>

#include "models/decoder/families/parsers.h"

namespace fsdp::models::families {
namespace {

constexpr const char* kActivation = "gelu_pytorch_tanh";

// What all three have in common.
DecoderConfig parse_gemma_common(const ConfigReader& config, const char* model_type, const Defaults& defaults) {
  DecoderConfig decoder = parse_common(config, model_type, defaults);
  decoder.norm_kind = RMSNormKind::kOnePlusWeight;
  decoder.embedding_multiplier = std::sqrt(static_cast<double>(decoder.hidden_size));
  decoder.rounds_embedding_multiplier = true;
  parse_attention_bias(config, decoder);
  if (config.boolean("use_bidirectional_attention", false)) {
    config.refuse("use_bidirectional_attention", "false or absent: a causal model does not see the tokens after it");
  }
  return decoder;
}

// Refuses a value under a name of the activation function that this family does not use, unless it is the same.
void check_other_activation(const ConfigReader& config, const std::string& key, const DecoderConfig& decoder) {
  const std::string other = parse_activation(config, key, decoder.activation.c_str());
  const bool same = other == decoder.activation || (other == "gelu" && decoder.activation == kActivation);
  if (!same) config.refuse(key, "absent or " + decoder.activation + ", the activation that transformers uses");
}

// What Gemma 2 and 3 have in common.
DecoderConfig parse_gemma2_common(const ConfigReader& config, const char* model_type, Defaults defaults) {
  defaults.num_key_value_heads = 4;
  defaults.head_dim = 256;
  defaults.pad_token_id = 0;
  defaults.tie_word_embeddings = true;
  defaults.divides_hidden_size = true;
  DecoderConfig decoder = parse_gemma_common(config, model_type, defaults);
  decoder.norms = {"input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm",
                   "post_feedforward_layernorm"};
  decoder.activation = parse_activation(config, "hidden_activation", kActivation);
  check_other_activation(config, "hidden_act", decoder);
  decoder.attention_scale = 1.0 / std::sqrt(config.number("query_pre_attn_scalar", 256.0, 1e-6, 1e9));
  return decoder;
}

// Reads a soft cap: an absent key is `default_value`, a null value no cap.
std::optional<double> parse_softcap(const ConfigReader& config, const std::string& key,
                                    std::optional<double> default_value) {
  if (config.is_null(key) || (!config.has(key) && !default_value)) return std::nullopt;
  return config.number(key, default_value, 1e-6, 1e9);
}

}  // namespace

DecoderConfig parse_gemma(const ConfigReader& config) {
  DecoderConfig decoder = parse_gemma_common(config, "gemma",
                                             {.max_position_embeddings = 8192,
                                              .num_key_value_heads = 16,
                                              .head_dim = 256,
                                              .pad_token_id = 0,
                                              .tie_word_embeddings = true});
  decoder.activation = parse_activation(config, "hidden_act", kActivation);
  // Published folders say gelu and mean its approximation by tanh.
  if (decoder.activation == "gelu") decoder.activation = kActivation;
  check_other_activation(config, "hidden_activation", decoder);
  parse_rope(config, decoder);
  return decoder;
}

DecoderConfig parse_gemma2(const ConfigReader& config) {
  DecoderConfig decoder = parse_gemma2_common(config, "gemma2", {.max_position_embeddings = 8192});
  decoder.attention_softcap = parse_softcap(config, "attn_logit_softcapping", 50.0);
  decoder.logits.softcap = parse_softcap(config, "final_logit_softcapping", 30.0);
  parse_rope(config, decoder);
  const auto types = parse_layer_types(config, decoder.layers.size(), [](size_t i) { return i % 2 == 0; });
  const std::optional<int64_t> window = parse_window(config, 4096);
  set_windows(config, types, window, decoder);
  if (window) refuse_unless(config, "sliding_window_size", *window);
  return decoder;
}

DecoderConfig parse_gemma3_text(const ConfigReader& config) {
  DecoderConfig decoder =
      parse_gemma2_common(config, "gemma3_text",
                          // Configs inside those of models with images leave these two out.
                          {.max_position_embeddings = 131072, .vocab_size = 262208, .num_attention_heads = 8});
  decoder.query_key_norm = QueryKeyNorm::kHead;
  decoder.logits.softcap = parse_softcap(config, "final_logit_softcapping", std::nullopt);
  if (config.has("attn_logit_softcapping")) {
    config.refuse("attn_logit_softcapping", "null or absent: transformers does not apply it in this family");
  }
  const int64_t pattern = config.positive_integer("sliding_window_pattern", 6);
  const auto types = parse_layer_types(config, decoder.layers.size(),
                                       [&](size_t i) { return static_cast<int64_t>(i + 1) % pattern != 0; });
  set_windows(config, types, parse_window(config, 4096), decoder);
  decoder.ropes = {
      parse_rope_of_layer_type(config, "full_attention", decoder.head_dim, decoder.max_position_embeddings,
                               "rope_theta", 1000000.0, /*takes_scaling=*/true),
      parse_rope_of_layer_type(config, "sliding_attention", decoder.head_dim, decoder.max_position_embeddings,
                               "rope_local_base_freq", 10000.0, /*takes_scaling=*/false)};
  set_ropes_by_type(types, decoder);
  return decoder;
}

}  // namespace fsdp::models::families
