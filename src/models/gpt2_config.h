// The config.json of a GPT-2.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace fsdp::models {

// Fields have the names of config.json.
struct GPT2Config {
  int64_t vocab_size = 0;
  int64_t n_positions = 0;
  int64_t n_embd = 0;
  int64_t n_layer = 0;
  int64_t n_head = 0;
  int64_t n_inner = 0;                           // if absent 4 * n_embd
  std::string activation_function = "gelu_new";  // one of activation_names()
  // Dropout in training mode: of the outputs of attention and MLP before they are added to the residual, of embeddings,
  // and of attention weights.
  double resid_pdrop = 0.1;
  double embd_pdrop = 0.1;
  double attn_pdrop = 0.1;
  double layer_norm_epsilon = 1e-5;
  double initializer_range = 0.02;
  bool scale_attn_weights = true;                // by 1/sqrt(n_embd / n_head)
  bool scale_attn_by_inverse_layer_idx = false;  // additionally by 1, 1/2, 1/3, … in the first, second, third, … layer
  bool reorder_and_upcast_attn = false;          // computes attention in fp32 if compute is bf16 or fp16
  bool tie_word_embeddings = true;
};

// Required keys: vocab_size, n_positions, n_embd, n_layer, n_head. All others have the defaults of transformers. Wrong
// types, values out of range, and unsupported settings (cross attention, quantization) are errors that name the key,
// its value and the accepted values.
GPT2Config parse_gpt2_config(const nlohmann::json& config);

}  // namespace fsdp::models
