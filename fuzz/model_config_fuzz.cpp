// Reads a model's config.json as the config of each architecture.
#include "formats/common/json_text.h"
#include "models/decoder/families.h"
#include "models/deepvit_config.h"
#include "models/dhen_config.h"
#include "models/gpt2_config.h"
#include "models/mpt_config.h"
#include "models/regnet_config.h"
#include "models/t5_config.h"
#include "reader_check.h"

using namespace fsdp;

namespace {

void check(const models::DecoderConfig& decoder) {
  fuzz::require(decoder.head_dim % 2 == 0 && decoder.num_attention_heads % decoder.num_key_value_heads == 0,
                "heads divide each other");
  fuzz::require(!decoder.pad_token_id || (*decoder.pad_token_id >= 0 && *decoder.pad_token_id < decoder.vocab_size),
                "the padding is a token");
  for (const models::DecoderLayerConfig& layer : decoder.layers) {
    fuzz::require(!layer.window || *layer.window >= 1, "a window has a position");
    fuzz::require(!layer.rope || *layer.rope < decoder.ropes.size(), "a layer's rotary embedding exists");
  }
  for (const models::RopeConfig& rope : decoder.ropes) {
    fuzz::require(rope.rotary_dim % 2 == 0 && rope.rotary_dim >= 2 && rope.rotary_dim <= decoder.head_dim,
                  "pairs of a head are rotated");
  }
}

void check(const models::GPT2Config& gpt2) {
  fuzz::require(gpt2.n_embd % gpt2.n_head == 0 && gpt2.n_inner >= 1, "heads divide the width");
  for (double dropout : {gpt2.resid_pdrop, gpt2.embd_pdrop, gpt2.attn_pdrop}) {
    fuzz::require(dropout >= 0 && dropout <= 1, "dropout is a probability");
  }
}

void check(const models::MptConfig& mpt) {
  fuzz::require(mpt.d_model % mpt.n_heads == 0 && mpt.max_seq_len >= 1, "heads divide the width");
  fuzz::require(mpt.attn_pdrop >= 0 && mpt.attn_pdrop <= 1, "dropout is a probability");
  fuzz::require(mpt.clip_qkv.value_or(1) > 0 && mpt.softmax_scale.value_or(1) > 0, "limit and scale are positive");
}

void check(const models::T5Config& t5) {
  fuzz::require(2 * t5.relative_attention_max_distance > t5.relative_attention_num_buckets,
                "the last bucket is reached");
  for (int64_t token : {t5.pad_token_id, t5.decoder_start_token_id}) {
    fuzz::require(token >= 0 && token < t5.vocab_size, "what the decoder reads are tokens");
  }
}

void check(const models::RegNetConfig& regnet) {
  fuzz::require(!regnet.depths.empty() && regnet.depths.size() == regnet.hidden_sizes.size(), "stages have depths");
  for (int64_t channels : regnet.hidden_sizes) {
    fuzz::require(channels % regnet.groups(channels) == 0, "groups divide the width");
  }
  fuzz::require(regnet.num_labels >= 2, "there are classes");
}

void check(const models::DeepViTConfig& vit) {
  fuzz::require(vit.image_size % vit.patch_size == 0 && vit.hidden_size % vit.num_attention_heads == 0,
                "patches and heads divide");
  fuzz::require(vit.tokens() >= 2 && vit.num_labels >= 2, "there are patches and classes");
}

void check(const models::DhenConfig& dhen) {
  fuzz::require(!dhen.table_rows.empty() && !dhen.interactions.empty(), "there are tables and interactions");
  fuzz::require(dhen.embedding_width >= 1 && dhen.layer_embeddings() >= 1, "there are embeddings");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto parse = [&] { return formats::parse_json(fuzz::text_of(data, size), "config.json"); };
  for (const models::DecoderFamily& family : models::decoder_families()) {
    fuzz::check_reader(size, "config.json", [&] { check(models::parse_decoder_config(parse(), family)); });
  }
  fuzz::check_reader(size, "config.json", [&] { check(models::parse_gpt2_config(parse())); });
  fuzz::check_reader(size, "config.json", [&] { check(models::parse_mpt_config(parse())); });
  fuzz::check_reader(size, "config.json", [&] { check(models::parse_t5_config(parse())); });
  fuzz::check_reader(size, "config.json", [&] { check(models::parse_regnet_config(parse())); });
  fuzz::check_reader(size, "config.json", [&] { check(models::parse_deepvit_config(parse())); });
  fuzz::check_reader(size, "config.json", [&] { check(models::parse_dhen_config(parse())); });
  return 0;
}
