// The config.json of a Llama.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "models/rope.h"

namespace fsdp::models {

struct LlamaConfig {
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t num_hidden_layers = 0;
  int64_t num_attention_heads = 0;
  int64_t num_key_value_heads = 0;
  int64_t head_dim = 0;
  int64_t max_position_embeddings = 2048;
  double rms_norm_eps = 1e-6;
  double initializer_range = 0.02;
  double attention_dropout = 0.0;   // in training mode
  std::string hidden_act = "silu";  // one of activation_names()
  bool attention_bias = false;
  bool mlp_bias = false;
  bool tie_word_embeddings = false;
  std::optional<int64_t> pad_token_id;  // from 0 to vocab_size - 1
  RopeConfig rope;
};

// Required keys: vocab_size, hidden_size, intermediate_size, num_hidden_layers, num_attention_heads. All others have
// the defaults of transformers. Wrong types, values out of range, and unsupported settings are errors that name the
// key, its value and the accepted values.
LlamaConfig parse_llama_config(const nlohmann::json& config);

}  // namespace fsdp::models
