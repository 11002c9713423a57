#include "models/llama_config.h"

#include <c10/util/StringUtil.h>

#include "models/activations.h"

namespace fsdp::models {
namespace {

// Parses the numbers of heads and the sizes that must divide each other, as in transformers.
void parse_heads(const ConfigReader& config, LlamaConfig& llama) {
  llama.num_attention_heads = config.positive_integer("num_attention_heads");
  llama.num_key_value_heads = config.positive_integer("num_key_value_heads", llama.num_attention_heads);
  if (llama.hidden_size % llama.num_attention_heads != 0) {
    config.refuse("num_attention_heads", c10::str("a divisor of hidden_size, ", llama.hidden_size));
  }
  if (llama.num_attention_heads % llama.num_key_value_heads != 0) {
    config.refuse("num_key_value_heads", c10::str("a divisor of num_attention_heads, ", llama.num_attention_heads));
  }
  llama.head_dim = config.positive_integer("head_dim", llama.hidden_size / llama.num_attention_heads);
  if (llama.head_dim % 2 != 0) {
    config.refuse(
        config.has("head_dim") ? "head_dim" : "num_attention_heads",
        c10::str("such that the dimension of a head, ", llama.head_dim, ", is even: rotary embeddings rotate pairs"));
  }
}

// A negative id counts from the end, as in PyTorch's Embedding.
std::optional<int64_t> parse_pad_token_id(const ConfigReader& config, int64_t vocab_size) {
  const std::optional<int64_t> id = config.integer("pad_token_id");
  if (id && (*id < -vocab_size || *id >= vocab_size)) {
    config.refuse("pad_token_id", c10::str("null or an id below vocab_size, ", vocab_size));
  }
  return id && *id < 0 ? *id + vocab_size : id;
}

}  // namespace

LlamaConfig parse_llama_config(const nlohmann::json& json) {
  const ConfigReader config(json, "config.json");
  LlamaConfig llama;
  llama.vocab_size = config.positive_integer("vocab_size");
  llama.hidden_size = config.positive_integer("hidden_size");
  llama.intermediate_size = config.positive_integer("intermediate_size");
  llama.num_hidden_layers = config.positive_integer("num_hidden_layers");
  parse_heads(config, llama);
  llama.max_position_embeddings = config.positive_integer("max_position_embeddings", llama.max_position_embeddings);
  llama.rms_norm_eps = config.number("rms_norm_eps", llama.rms_norm_eps, 0.0, 1.0);
  llama.initializer_range = config.number("initializer_range", llama.initializer_range, 0.0, 1.0);
  llama.attention_dropout = config.number("attention_dropout", llama.attention_dropout, 0.0, 1.0);
  llama.hidden_act = config.choice("hidden_act", llama.hidden_act, activation_names());
  llama.attention_bias = config.boolean("attention_bias", llama.attention_bias);
  llama.mlp_bias = config.boolean("mlp_bias", llama.mlp_bias);
  llama.tie_word_embeddings = config.boolean("tie_word_embeddings", llama.tie_word_embeddings);
  llama.pad_token_id = parse_pad_token_id(config, llama.vocab_size);
  llama.rope = parse_rope_config(config, llama.max_position_embeddings);
  config.refuse_quantized();
  return llama;
}

}  // namespace fsdp::models
