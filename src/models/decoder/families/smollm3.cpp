// SmolLM 3: every few layers do not encode positions.
#include <c10/util/StringUtil.h>

#include "models/decoder/families/parsers.h"

namespace fsdp::models::families {
namespace {

// Returns for each layer whether its queries and keys are rotated.
std::vector<bool> rotated_layers(const ConfigReader& config, size_t layers) {
  const std::string key = "no_rope_layers";  // 1 means that the layer has a rotary embedding
  const int64_t interval = config.positive_integer("no_rope_layer_interval", 4);
  std::vector<bool> rotated;
  if (const auto list = config.integers(key, 0)) {
    if (list->size() < layers)
      config.refuse(key, c10::str("a list with an element for each of the ", layers, " layers"));
    for (size_t i = 0; i < layers; ++i) rotated.push_back(list->at(i) != 0);
    return rotated;
  }
  for (size_t i = 0; i < layers; ++i) rotated.push_back(static_cast<int64_t>(i + 1) % interval != 0);
  return rotated;
}

}  // namespace

DecoderConfig parse_smollm3(const ConfigReader& config) {
  DecoderConfig decoder = parse_common(config, "smollm3",
                                       {.max_position_embeddings = 32768,
                                        .num_key_value_heads = 4,
                                        .pad_token_id = 128004,
                                        .tie_word_embeddings = true});
  decoder.activation = parse_activation(config, "hidden_act", "silu");
  parse_attention_bias(config, decoder);
  decoder.mlp_bias = config.boolean("mlp_bias", false);
  parse_rope(config, decoder, {.theta = 2000000.0});
  config.integer("max_window_layers");  // published folders have it, and transformers does not read it
  const std::vector<bool> rotated = rotated_layers(config, decoder.layers.size());
  const std::optional<int64_t> window = parse_used_window(config, std::nullopt);
  for (size_t i = 0; i < decoder.layers.size(); ++i) {
    if (!rotated[i]) decoder.layers[i].rope.reset();
  }
  const auto types = parse_layer_types(config, decoder.layers.size(), [&](size_t i) { return window && !rotated[i]; });
  set_windows(config, types, window, decoder);
  return decoder;
}

}  // namespace fsdp::models::families
