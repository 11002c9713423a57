// Phi-3, 3.5 and 4.
#include "models/decoder/families/parsers.h"

namespace fsdp::models::families {

DecoderConfig parse_phi3(const ConfigReader& config) {
  DecoderConfig decoder =
      parse_common(config, "phi3", {.max_position_embeddings = 4096, .norm_eps = 1e-5, .pad_token_id = 32000});
  decoder.activation = parse_activation(config, "hidden_act", "silu");
  decoder.fused_query_key_value = decoder.fused_gate_up = true;
  decoder.residual_dropout = config.number("resid_pdrop", 0.0, 0.0, 1.0);
  if (config.number("embd_pdrop", 0.0, 0.0, 1.0) != 0.0) {
    config.refuse("embd_pdrop", "0 or absent: transformers does not apply it");
  }
  parse_rope(config, decoder,
             {.may_be_partial = true, .knows_only_longrope = true, .original_max_position_embeddings = 4096});
  for (const char* key : {"attention_bias", "mlp_bias", "lm_head_bias"}) refuse_unless(config, key, false);
  for (const char* key : {"full_attn_mod", "interpolate_factor"}) refuse_unless(config, key, 1);
  set_window_of_all(parse_window(config, std::nullopt), decoder);
  return decoder;
}

}  // namespace fsdp::models::families
