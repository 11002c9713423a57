#include "models/gpt2_config.h"

#include <c10/util/StringUtil.h>

#include "models/activations.h"
#include "models/config_reader.h"

namespace fsdp::models {
namespace {

void parse_sizes(const ConfigReader& config, GPT2Config& gpt2) {
  gpt2.vocab_size = config.positive_integer("vocab_size");
  gpt2.n_positions = config.positive_integer("n_positions");
  gpt2.n_embd = config.positive_integer("n_embd");
  gpt2.n_layer = config.positive_integer("n_layer");
  gpt2.n_head = config.positive_integer("n_head");
  gpt2.n_inner = config.positive_integer("n_inner", 4 * gpt2.n_embd);
  if (gpt2.n_embd % gpt2.n_head != 0) config.refuse("n_head", c10::str("a divisor of n_embd, ", gpt2.n_embd));
}

void parse_dropout(const ConfigReader& config, GPT2Config& gpt2) {
  gpt2.resid_pdrop = config.number("resid_pdrop", gpt2.resid_pdrop, 0.0, 1.0);
  gpt2.embd_pdrop = config.number("embd_pdrop", gpt2.embd_pdrop, 0.0, 1.0);
  gpt2.attn_pdrop = config.number("attn_pdrop", gpt2.attn_pdrop, 0.0, 1.0);
}

void parse_attention(const ConfigReader& config, GPT2Config& gpt2) {
  gpt2.scale_attn_weights = config.boolean("scale_attn_weights", gpt2.scale_attn_weights);
  gpt2.scale_attn_by_inverse_layer_idx =
      config.boolean("scale_attn_by_inverse_layer_idx", gpt2.scale_attn_by_inverse_layer_idx);
  gpt2.reorder_and_upcast_attn = config.boolean("reorder_and_upcast_attn", gpt2.reorder_and_upcast_attn);
}

// Refuses settings that transformers supports and this library does not.
void refuse_unsupported_gpt2(const ConfigReader& config) {
  config.refuse_other_names("GPT-2", {{"hidden_size", "n_embd"},
                                      {"max_position_embeddings", "n_positions"},
                                      {"num_attention_heads", "n_head"},
                                      {"num_hidden_layers", "n_layer"}});
  if (config.boolean("add_cross_attention", false)) {
    config.refuse("add_cross_attention", "false: only the decoder by itself is supported");
  }
  config.refuse_quantized();
}

}  // namespace

GPT2Config parse_gpt2_config(const nlohmann::json& json) {
  const ConfigReader config(json, "config.json");
  GPT2Config gpt2;
  refuse_unsupported_gpt2(config);
  parse_sizes(config, gpt2);
  parse_dropout(config, gpt2);
  parse_attention(config, gpt2);
  gpt2.activation_function = config.choice("activation_function", gpt2.activation_function, activation_names());
  gpt2.layer_norm_epsilon = config.number("layer_norm_epsilon", gpt2.layer_norm_epsilon, 0.0, 1.0);
  gpt2.initializer_range = config.number("initializer_range", gpt2.initializer_range, 0.0, 1.0);
  gpt2.tie_word_embeddings = config.boolean("tie_word_embeddings", gpt2.tie_word_embeddings);
  return gpt2;
}

}  // namespace fsdp::models
