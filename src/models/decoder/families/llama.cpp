// Llama, and the families that differ from it by a few defaults.
#include "models/decoder/families/parsers.h"

namespace fsdp::models::families {
namespace {

// Layers from max_window_layers on have a window, if use_sliding_window says so.
void parse_qwen_windows(const ConfigReader& config, DecoderConfig& decoder) {
  const std::optional<int64_t> window = parse_used_window(config, 4096);
  const auto first = config.integer("max_window_layers").value_or(28);
  const auto types = parse_layer_types(config, decoder.layers.size(),
                                       [&](size_t i) { return window && static_cast<int64_t>(i) >= first; });
  set_windows(config, types, window, decoder);
}

}  // namespace

DecoderConfig parse_llama(const ConfigReader& config) {
  DecoderConfig decoder = parse_common(config, "llama", {.max_position_embeddings = 2048, .divides_hidden_size = true});
  decoder.activation = parse_activation(config, "hidden_act", "silu");
  parse_attention_bias(config, decoder);
  decoder.mlp_bias = config.boolean("mlp_bias", false);
  parse_rope(config, decoder);
  refuse_unless(config, "rope_interleaved", false);
  return decoder;
}

DecoderConfig parse_qwen2(const ConfigReader& config) {
  DecoderConfig decoder = parse_common(config, "qwen2", {.max_position_embeddings = 32768, .num_key_value_heads = 32});
  decoder.activation = parse_activation(config, "hidden_act", "silu");
  decoder.query_key_value_bias = true;
  refuse_unless(config, "use_mrope", false);
  parse_rope(config, decoder);
  parse_qwen_windows(config, decoder);
  return decoder;
}

DecoderConfig parse_qwen3(const ConfigReader& config) {
  DecoderConfig decoder =
      parse_common(config, "qwen3", {.max_position_embeddings = 32768, .num_key_value_heads = 32, .head_dim = 128});
  decoder.activation = parse_activation(config, "hidden_act", "silu");
  decoder.query_key_norm = QueryKeyNorm::kHead;
  parse_attention_bias(config, decoder);
  parse_rope(config, decoder);
  parse_qwen_windows(config, decoder);
  return decoder;
}

DecoderConfig parse_mistral(const ConfigReader& config) {
  DecoderConfig decoder =
      parse_common(config, "mistral", {.max_position_embeddings = 131072, .num_key_value_heads = 8});
  decoder.activation = parse_activation(config, "hidden_act", "silu");
  parse_rope(config, decoder);
  if (config.has("layer_types")) config.refuse("layer_types", "absent: models that have it are of type ministral");
  set_window_of_all(parse_window(config, 4096), decoder);
  return decoder;
}

DecoderConfig parse_ministral(const ConfigReader& config) {
  DecoderConfig decoder =
      parse_common(config, "ministral", {.max_position_embeddings = 131072, .num_key_value_heads = 8});
  decoder.activation = parse_activation(config, "hidden_act", "silu");
  parse_rope(config, decoder);
  const std::optional<int64_t> window = parse_window(config, 4096);
  const auto types = parse_layer_types(config, decoder.layers.size(), [&](size_t) { return window.has_value(); });
  set_windows(config, types, window, decoder);
  return decoder;
}

DecoderConfig parse_granite(const ConfigReader& config) {
  DecoderConfig decoder = parse_common(config, "granite", {.max_position_embeddings = 2048});
  decoder.activation = parse_activation(config, "hidden_act", "silu");
  parse_attention_bias(config, decoder);
  decoder.mlp_bias = config.boolean("mlp_bias", false);
  parse_rope(config, decoder);
  decoder.embedding_multiplier = config.number("embedding_multiplier", 1.0, -1e6, 1e6);
  decoder.attention_scale = config.number("attention_multiplier", 1.0, 1e-6, 1e6);
  decoder.residual_multiplier = config.number("residual_multiplier", 1.0, -1e6, 1e6);
  decoder.logits.divisor = config.number("logits_scaling", 1.0, 1e-6, 1e6);
  return decoder;
}

}  // namespace fsdp::models::families
