#include "models/mpt_config.h"

#include <c10/util/StringUtil.h>

#include <limits>

#include "models/config_reader.h"

namespace fsdp::models {
namespace {

constexpr double kLargest = std::numeric_limits<float>::max();

// Throws unless the key is absent or has this value, the only one that transformers' MPT computes with.
void accept_only(const ConfigReader& config, const char* key, const nlohmann::json& value) {
  if (config.has(key) && config.at(key) != value) config.refuse(key, value.dump());
}

std::optional<double> positive_number(const ConfigReader& config, const char* key) {
  if (!config.has(key)) return std::nullopt;
  const double number = config.number(key, std::nullopt, 0.0, kLargest);
  if (number == 0.0) config.refuse(key, "a number greater than 0, or null");
  return number;
}

void parse_sizes(const ConfigReader& config, MptConfig& mpt) {
  mpt.vocab_size = config.positive_integer("vocab_size", mpt.vocab_size);
  mpt.d_model = config.positive_integer("d_model", mpt.d_model);
  mpt.n_heads = config.positive_integer("n_heads", mpt.n_heads);
  mpt.n_layers = config.positive_integer("n_layers", mpt.n_layers);
  mpt.max_seq_len = config.positive_integer("max_seq_len", mpt.max_seq_len);
  if (mpt.d_model % mpt.n_heads != 0) config.refuse("n_heads", c10::str("a divisor of d_model, ", mpt.d_model));
  accept_only(config, "expansion_ratio", 4);
}

// Each is off in the published models. Transformers reads them and computes without them.
void refuse_unsupported_mpt(const ConfigReader& config) {
  config.refuse_other_names("MPT", {{"hidden_size", "d_model"},
                                    {"max_position_embeddings", "max_seq_len"},
                                    {"num_attention_heads", "n_heads"},
                                    {"num_hidden_layers", "n_layers"}});
  accept_only(config, "no_bias", true);
  accept_only(config, "resid_pdrop", 0);
  accept_only(config, "emb_pdrop", 0);
  accept_only(config, "embedding_fraction", 1);
  if (config.has("logit_scale")) config.refuse("logit_scale", "null");
  config.choice("norm_type", "low_precision_layernorm", {"low_precision_layernorm", "layernorm"});
  config.refuse_quantized();
}

void parse_attention(const ConfigReader& config, MptConfig& mpt) {
  accept_only(config, "attn_type", "multihead_attention");
  accept_only(config, "alibi", true);
  accept_only(config, "alibi_bias_max", 8);
  for (const char* off : {"prefix_lm", "qk_ln", "attn_uses_sequence_id"}) accept_only(config, off, false);
  mpt.attn_pdrop = config.number("attn_pdrop", mpt.attn_pdrop, 0.0, 1.0);
  mpt.clip_qkv = positive_number(config, "clip_qkv");
  mpt.softmax_scale = positive_number(config, "softmax_scale");
}

}  // namespace

MptConfig parse_mpt_config(const nlohmann::json& json) {
  const ConfigReader config(json, "config.json");
  MptConfig mpt;
  refuse_unsupported_mpt(config);
  parse_sizes(config, mpt);
  mpt.layer_norm_epsilon = config.number("layer_norm_epsilon", mpt.layer_norm_epsilon, 0.0, 1.0);
  mpt.initializer_range = config.number("initializer_range", mpt.initializer_range, 0.0, 1.0);
  mpt.tie_word_embeddings = config.boolean("tie_word_embeddings", mpt.tie_word_embeddings);
  if (config.has("attn_config")) {
    const auto& attention = config.at("attn_config");
    if (!attention.is_object()) config.refuse("attn_config", "an object or null");
    parse_attention(ConfigReader(attention, "config.json: attn_config"), mpt);
  }
  return mpt;
}

}  // namespace fsdp::models
