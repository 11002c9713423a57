// The config.json of a T5.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace fsdp::models {

// Fields have the names of config.json.
struct T5Config {
  int64_t vocab_size = 0;
  int64_t d_model = 0;
  int64_t d_kv = 0;  // width of one head
  int64_t d_ff = 0;
  int64_t num_layers = 0;          // of the encoder
  int64_t num_decoder_layers = 0;  // if absent num_layers
  int64_t num_heads = 0;
  int64_t relative_attention_num_buckets = 32;
  int64_t relative_attention_max_distance = 128;
  double dropout_rate = 0.1;  // in training mode
  double layer_norm_epsilon = 1e-6;
  double initializer_factor = 1.0;
  // Both follow from feed_forward_proj, "ACTIVATION" or "gated-ACTIVATION", unless their own keys are set; "gated-gelu"
  // means gelu_new.
  std::string dense_act_fn = "relu";  // one of activation_names()
  bool is_gated_act = false;
  bool tie_word_embeddings = true;
  bool scale_decoder_outputs = true;  // by d_model^-1/2 before the head; if absent tie_word_embeddings
  int64_t pad_token_id = 0;
  int64_t decoder_start_token_id = 0;

  int64_t inner_dim() const { return num_heads * d_kv; }
};

// Required keys: vocab_size, d_model, d_kv, d_ff, num_layers, num_heads, decoder_start_token_id. All others have the
// defaults of transformers. Wrong types, values out of range, and unsupported settings (a decoder without an encoder,
// quantization) are errors that name the key, its value and the accepted values.
T5Config parse_t5_config(const nlohmann::json& config);

}  // namespace fsdp::models
