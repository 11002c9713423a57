// OLMo 2 and 3: norms stand after attention and MLP only.
#include "models/decoder/families/parsers.h"

namespace fsdp::models::families {
namespace {

DecoderConfig parse_olmo_common(const ConfigReader& config, const char* model_type) {
  DecoderConfig decoder =
      parse_common(config, model_type, {.max_position_embeddings = 2048, .norm_eps = 1e-5, .pad_token_id = 1});
  decoder.activation = parse_activation(config, "hidden_act", "silu");
  decoder.norm_kind = RMSNormKind::kWideProduct;
  decoder.norms = {"", "post_attention_layernorm", "", "post_feedforward_layernorm"};
  decoder.query_key_norm = QueryKeyNorm::kProjection;
  parse_attention_bias(config, decoder);
  return decoder;
}

}  // namespace

DecoderConfig parse_olmo2(const ConfigReader& config) {
  DecoderConfig decoder = parse_olmo_common(config, "olmo2");
  parse_rope(config, decoder);
  decoder.ropes.front().keeps_fp32 = true;
  return decoder;
}

DecoderConfig parse_olmo3(const ConfigReader& config) {
  DecoderConfig decoder = parse_olmo_common(config, "olmo3");
  const auto types = parse_layer_types(config, decoder.layers.size(), [](size_t i) { return (i + 1) % 4 != 0; });
  set_windows(config, types, parse_window(config, 4096), decoder);
  // A rope_theta at the top level is that of the layers with full attention alone, as in transformers.
  decoder.ropes = {parse_rope_of_layer_type(config, "full_attention", decoder.head_dim, decoder.max_position_embeddings,
                                            "rope_theta", 500000.0, /*takes_scaling=*/true),
                   parse_rope_of_layer_type(config, "sliding_attention", decoder.head_dim,
                                            decoder.max_position_embeddings, "", 500000.0, /*takes_scaling=*/false)};
  for (RopeConfig& rope : decoder.ropes) rope.keeps_fp32 = true;
  set_ropes_by_type(types, decoder);
  return decoder;
}

}  // namespace fsdp::models::families
