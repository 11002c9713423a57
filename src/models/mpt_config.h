// The config.json of an MPT.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>

namespace fsdp::models {

// Fields have the names of config.json; those of attention are in its object attn_config there.
struct MptConfig {
  int64_t vocab_size = 50368;
  int64_t d_model = 2048;
  int64_t n_heads = 16;
  int64_t n_layers = 24;
  int64_t max_seq_len = 2048;
  double layer_norm_epsilon = 1e-5;
  double initializer_range = 0.02;
  bool tie_word_embeddings = true;
  // Dropout in training mode: of attention weights, and of the outputs of attention and MLP.
  double attn_pdrop = 0.0;
  std::optional<double> clip_qkv;       // largest magnitude of queries, keys and values
  std::optional<double> softmax_scale;  // of query · key; unset: 1/sqrt(d_model / n_heads)
};

// All keys have the defaults of transformers. Wrong types, values out of range, and settings that transformers' MPT
// does not compute (biases, other MLP sizes, dropout of embeddings, normed queries) are errors that name the key, its
// value and the accepted values.
MptConfig parse_mpt_config(const nlohmann::json& config);

}  // namespace fsdp::models
