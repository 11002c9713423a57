#include "models/t5_config.h"

#include <c10/util/StringUtil.h>

#include <optional>
#include <string_view>
#include <vector>

#include "models/activations.h"
#include "models/config_reader.h"

namespace fsdp::models {
namespace {

constexpr std::string_view kGated = "gated-";

void parse_sizes(const ConfigReader& config, T5Config& t5) {
  t5.vocab_size = config.positive_integer("vocab_size");
  t5.d_model = config.positive_integer("d_model");
  t5.d_kv = config.positive_integer("d_kv");
  t5.d_ff = config.positive_integer("d_ff");
  t5.num_layers = config.positive_integer("num_layers");
  t5.num_decoder_layers = config.positive_integer("num_decoder_layers", t5.num_layers);
  t5.num_heads = config.positive_integer("num_heads");
}

// Half the buckets (in the encoder a quarter) contain one distance each; the others extend to the largest distance.
void parse_positions(const ConfigReader& config, T5Config& t5) {
  constexpr const char* kBuckets = "relative_attention_num_buckets";
  constexpr const char* kDistance = "relative_attention_max_distance";
  t5.relative_attention_num_buckets = config.positive_integer(kBuckets, t5.relative_attention_num_buckets);
  if (t5.relative_attention_num_buckets < 4) config.refuse(kBuckets, "at least 4");
  t5.relative_attention_max_distance = config.positive_integer(kDistance, t5.relative_attention_max_distance);
  const int64_t exact = t5.relative_attention_num_buckets / 2;
  if (t5.relative_attention_max_distance <= exact) {
    config.refuse(kDistance, c10::str("more than half of ", kBuckets, ", ", exact));
  }
}

void parse_feed_forward(const ConfigReader& config, T5Config& t5) {
  std::vector<std::string> accepted = activation_names();
  for (const std::string& name : activation_names()) accepted.push_back(std::string(kGated) + name);
  const std::string projection = config.choice("feed_forward_proj", t5.dense_act_fn, accepted);
  const bool gated = projection.starts_with(kGated);
  std::string activation = gated ? projection.substr(kGated.size()) : projection;
  if (projection == "gated-gelu") activation = "gelu_new";
  t5.dense_act_fn = config.choice("dense_act_fn", activation, activation_names());
  t5.is_gated_act = config.boolean("is_gated_act", gated);
}

int64_t token(const ConfigReader& config, const T5Config& t5, const char* key, std::optional<int64_t> default_value) {
  const std::string expected = c10::str("an integer from 0 to vocab_size - 1, ", t5.vocab_size - 1);
  if (!config.has(key) && !default_value) config.missing(key, expected);
  const int64_t value = config.has(key) ? *config.integer(key) : *default_value;
  if (value < 0 || value >= t5.vocab_size) config.refuse(key, expected);
  return value;
}

// Refuses settings that transformers supports and this library does not.
void refuse_unsupported_t5(const ConfigReader& config) {
  config.refuse_other_names("T5", {{"hidden_size", "d_model"},
                                   {"head_dim", "d_kv"},
                                   {"num_attention_heads", "num_heads"},
                                   {"num_hidden_layers", "num_layers"}});
  if (!config.boolean("is_encoder_decoder", true)) {
    config.refuse("is_encoder_decoder", "true: neither half is supported by itself");
  }
  if (config.boolean("is_decoder", false)) config.refuse("is_decoder", "false: the decoder by itself is not supported");
  config.refuse_quantized();
}

}  // namespace

T5Config parse_t5_config(const nlohmann::json& json) {
  const ConfigReader config(json, "config.json");
  T5Config t5;
  refuse_unsupported_t5(config);
  parse_sizes(config, t5);
  parse_positions(config, t5);
  parse_feed_forward(config, t5);
  t5.dropout_rate = config.number("dropout_rate", t5.dropout_rate, 0.0, 1.0);
  t5.layer_norm_epsilon = config.number("layer_norm_epsilon", t5.layer_norm_epsilon, 0.0, 1.0);
  t5.initializer_factor = config.number("initializer_factor", t5.initializer_factor, 0.0, 1000.0);
  t5.tie_word_embeddings = config.boolean("tie_word_embeddings", t5.tie_word_embeddings);
  t5.scale_decoder_outputs = config.boolean("scale_decoder_outputs", t5.tie_word_embeddings);
  t5.pad_token_id = token(config, t5, "pad_token_id", 0);
  t5.decoder_start_token_id = token(config, t5, "decoder_start_token_id", {});
  return t5;
}

}  // namespace fsdp::models
