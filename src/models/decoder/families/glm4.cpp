// GLM-4 (0414).
#include "models/decoder/families/parsers.h"

namespace fsdp::models::families {

DecoderConfig parse_glm4(const ConfigReader& config) {
  DecoderConfig decoder = parse_common(config, "glm4",
                                       {.max_position_embeddings = 131072,
                                        .norm_eps = 1.5625e-7,
                                        .num_key_value_heads = 2,
                                        .head_dim = 128,
                                        .pad_token_id = 151329});
  decoder.activation = parse_activation(config, "hidden_act", "silu");
  decoder.query_key_value_bias = config.boolean("attention_bias", true);
  decoder.fused_gate_up = true;
  decoder.norms = {"input_layernorm", "post_self_attn_layernorm", "post_attention_layernorm", "post_mlp_layernorm"};
  parse_rope(config, decoder, {.partial_rotary_factor = 0.5, .may_be_partial = true, .pairs = RopePairs::kNeighbours});
  return decoder;
}

}  // namespace fsdp::models::families
