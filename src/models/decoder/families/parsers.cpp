#include "models/decoder/families/parsers.h"

#include <c10/util/StringUtil.h>

#include "models/activations.h"

namespace fsdp::models::families {
namespace {

// A key that is absent has the family's default; a null value means one key and value head for each query head.
int64_t parse_key_value_heads(const ConfigReader& config, int64_t heads, std::optional<int64_t> default_value) {
  const std::string key = "num_key_value_heads";
  return config.positive_integer(key, config.is_null(key) ? heads : default_value.value_or(heads));
}

void parse_heads(const ConfigReader& config, const Defaults& defaults, DecoderConfig& decoder) {
  const int64_t heads = decoder.num_attention_heads =
      config.positive_integer("num_attention_heads", defaults.num_attention_heads);
  decoder.num_key_value_heads = parse_key_value_heads(config, heads, defaults.num_key_value_heads);
  const bool has_head_dim = config.has("head_dim") || (defaults.head_dim && !config.is_null("head_dim"));
  if ((!has_head_dim || defaults.divides_hidden_size) && decoder.hidden_size % heads != 0) {
    config.refuse("num_attention_heads", c10::str("a divisor of hidden_size, ", decoder.hidden_size));
  }
  if (heads % decoder.num_key_value_heads != 0) {
    const std::string expected = c10::str("a divisor of num_attention_heads, ", heads);
    if (config.has("num_key_value_heads")) config.refuse("num_key_value_heads", expected);
    config.missing("num_key_value_heads",
                   c10::str(expected, "; the default of ", decoder.model_type, " is ", decoder.num_key_value_heads));
  }
  const int64_t derived = decoder.hidden_size / heads;
  decoder.head_dim = config.positive_integer("head_dim", has_head_dim ? defaults.head_dim.value_or(derived) : derived);
  if (decoder.head_dim % 2 != 0) {
    config.refuse(
        config.has("head_dim") ? "head_dim" : "num_attention_heads",
        c10::str("such that the dimension of a head, ", decoder.head_dim, ", is even: rotary embeddings rotate pairs"));
  }
}

// A negative id counts from the end, as in PyTorch's Embedding.
std::optional<int64_t> parse_pad_token_id(const ConfigReader& config, int64_t vocab_size,
                                          std::optional<int64_t> default_value) {
  const std::string key = "pad_token_id", expected = c10::str("null or an id below vocab_size, ", vocab_size);
  std::optional<int64_t> id = config.integer(key);
  if (!id && !config.is_null(key)) {
    id = default_value;
    if (id && *id >= vocab_size) config.missing(key, c10::str(expected, "; the default is ", *id));
  }
  if (id && (*id < -vocab_size || *id >= vocab_size)) config.refuse(key, expected);
  return id && *id < 0 ? *id + vocab_size : id;
}

}  // namespace

DecoderConfig parse_common(const ConfigReader& config, const char* model_type, const Defaults& defaults) {
  DecoderConfig decoder;
  decoder.model_type = model_type;
  decoder.vocab_size = config.positive_integer("vocab_size", defaults.vocab_size);
  decoder.hidden_size = config.positive_integer("hidden_size");
  decoder.intermediate_size = config.positive_integer("intermediate_size");
  decoder.layers.resize(static_cast<size_t>(config.positive_integer("num_hidden_layers")));
  parse_heads(config, defaults, decoder);
  decoder.max_position_embeddings =
      config.positive_integer("max_position_embeddings", defaults.max_position_embeddings);
  decoder.norm_eps = config.number("rms_norm_eps", defaults.norm_eps, 0.0, 1.0);
  decoder.initializer_range = config.number("initializer_range", decoder.initializer_range, 0.0, 1.0);
  decoder.attention_dropout = config.number("attention_dropout", decoder.attention_dropout, 0.0, 1.0);
  decoder.tie_word_embeddings = config.boolean("tie_word_embeddings", defaults.tie_word_embeddings);
  decoder.pad_token_id = parse_pad_token_id(config, decoder.vocab_size, defaults.pad_token_id);
  config.refuse_quantized();
  return decoder;
}

std::string parse_activation(const ConfigReader& config, const std::string& key, const char* default_value) {
  return config.choice(key, default_value, activation_names());
}

void refuse_unless(const ConfigReader& config, const std::string& key, const nlohmann::json& value) {
  if (config.has(key) && config.at(key) != value) {
    config.refuse(key, c10::str("absent or ", value.dump(), ": transformers does not read it in these models"));
  }
}

void parse_attention_bias(const ConfigReader& config, DecoderConfig& decoder) {
  decoder.query_key_value_bias = decoder.output_bias = config.boolean("attention_bias", false);
}

void parse_rope(const ConfigReader& config, DecoderConfig& decoder, const RopeFamily& family) {
  decoder.ropes = {parse_rope_config(config, decoder.head_dim, decoder.max_position_embeddings, family)};
}

std::optional<int64_t> parse_window(const ConfigReader& config, std::optional<int64_t> default_value) {
  const std::string key = "sliding_window";
  if (config.is_null(key) || (!config.has(key) && !default_value)) return std::nullopt;
  return config.positive_integer(key, default_value);
}

std::optional<int64_t> parse_used_window(const ConfigReader& config, std::optional<int64_t> default_value) {
  const bool is_used = config.boolean("use_sliding_window", false);
  const std::optional<int64_t> window = parse_window(config, default_value);
  return is_used ? window : std::nullopt;
}

void set_windows(const ConfigReader& config, const std::vector<std::string>& layer_types, std::optional<int64_t> window,
                 DecoderConfig& decoder) {
  for (size_t i = 0; i < layer_types.size(); ++i) {
    if (layer_types[i] != "sliding_attention") continue;
    if (!window) {
      config.refuse("layer_types",
                    "without sliding_attention, since this config has no window: sliding_window is null, or "
                    "use_sliding_window false");
    }
    decoder.layers[i].window = window;
  }
}

void set_window_of_all(std::optional<int64_t> window, DecoderConfig& decoder) {
  for (DecoderLayerConfig& layer : decoder.layers) layer.window = window;
}

void set_ropes_by_type(const std::vector<std::string>& layer_types, DecoderConfig& decoder) {
  for (size_t i = 0; i < layer_types.size(); ++i) decoder.layers[i].rope = layer_types[i] == "full_attention" ? 0 : 1;
}

}  // namespace fsdp::models::families
