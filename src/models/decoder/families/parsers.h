// The parsers of all families, and the steps that they share.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "models/config_reader.h"
#include "models/decoder/decoder_config.h"

namespace fsdp::models::families {

// What a family says where its config.json is silent.
struct Defaults {
  int64_t max_position_embeddings = 0;
  std::optional<int64_t> vocab_size = {};           // unset: the key is required
  std::optional<int64_t> num_attention_heads = {};  // unset: the key is required
  double norm_eps = 1e-6;
  std::optional<int64_t> num_key_value_heads = {};  // unset: as many as num_attention_heads, as with a null value
  std::optional<int64_t> head_dim = {};             // unset: hidden_size / num_attention_heads
  std::optional<int64_t> pad_token_id = {};
  bool tie_word_embeddings = false;
  bool divides_hidden_size = false;  // hidden_size must be divisible by num_attention_heads, even with a head_dim
};

// Reads the keys that all families have: sizes, heads, layers (without windows, with the rotary embedding 0), the
// norm's epsilon, dropout of attention weights, padding, tied embeddings, and the initial standard deviation.
DecoderConfig parse_common(const ConfigReader& config, const char* model_type, const Defaults& defaults);

// Reads the activation function under `key`.
std::string parse_activation(const ConfigReader& config, const std::string& key, const char* default_value);

// Reads keys that folders carry and that transformers does not read in this family. Values other than `value`, which
// changes nothing, are refused.
void refuse_unless(const ConfigReader& config, const std::string& key, const nlohmann::json& value);

// Reads attention_bias, which is the bias of all four projections.
void parse_attention_bias(const ConfigReader& config, DecoderConfig& decoder);

// Reads one rotary embedding for all layers.
void parse_rope(const ConfigReader& config, DecoderConfig& decoder, const RopeFamily& family = {});

// Reads sliding_window: an absent key is `default_value`, a null value no window.
std::optional<int64_t> parse_window(const ConfigReader& config, std::optional<int64_t> default_value);

// Reads sliding_window, too, but returns it only if use_sliding_window is true.
std::optional<int64_t> parse_used_window(const ConfigReader& config, std::optional<int64_t> default_value);

// Reads layer_types, or returns default_type(index) for each layer. Names of types are those of transformers.
template <typename DefaultType>
std::vector<std::string> parse_layer_types(const ConfigReader& config, size_t layers, const DefaultType& default_type) {
  if (auto types = config.choices("layer_types", layers, {"full_attention", "sliding_attention"})) return *types;
  std::vector<std::string> types;
  for (size_t i = 0; i < layers; ++i) types.emplace_back(default_type(i) ? "sliding_attention" : "full_attention");
  return types;
}

// Gives the layers of type sliding_attention the window, which such layers need.
void set_windows(const ConfigReader& config, const std::vector<std::string>& layer_types, std::optional<int64_t> window,
                 DecoderConfig& decoder);

void set_window_of_all(std::optional<int64_t> window, DecoderConfig& decoder);

// Gives layers of type full_attention the first rotary embedding of the config, and others the second.
void set_ropes_by_type(const std::vector<std::string>& layer_types, DecoderConfig& decoder);

// The parsers.
DecoderConfig parse_llama(const ConfigReader& config);
DecoderConfig parse_qwen2(const ConfigReader& config);
DecoderConfig parse_qwen3(const ConfigReader& config);
DecoderConfig parse_mistral(const ConfigReader& config);
DecoderConfig parse_ministral(const ConfigReader& config);
DecoderConfig parse_smollm3(const ConfigReader& config);
DecoderConfig parse_granite(const ConfigReader& config);
DecoderConfig parse_gemma(const ConfigReader& config);
DecoderConfig parse_gemma2(const ConfigReader& config);
DecoderConfig parse_gemma3_text(const ConfigReader& config);
DecoderConfig parse_phi3(const ConfigReader& config);
DecoderConfig parse_olmo2(const ConfigReader& config);
DecoderConfig parse_olmo3(const ConfigReader& config);
DecoderConfig parse_glm4(const ConfigReader& config);
DecoderConfig parse_mixtral(const ConfigReader& config);
DecoderConfig parse_qwen2_moe(const ConfigReader& config);
DecoderConfig parse_qwen3_moe(const ConfigReader& config);
DecoderConfig parse_olmoe(const ConfigReader& config);

}  // namespace fsdp::models::families
