// Tests what the parsers of families make of a config.json. tests/python/test_decoders.py compares the models with
// transformers.
#include "models/decoder/families.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "models/testing/small_models.h"
#include "support/faults/error_of.h"

namespace fsdp::models::families_test {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;
using testing::kNoError;

constexpr auto kNone = std::nullopt;
const char* const kFull = "full_attention";
const char* const kSliding = "sliding_attention";

DecoderConfig parse(const char* model_type, const json& changes = {}) {
  return parse_decoder_config(small_decoder(model_type, "", changes), model_type);
}

std::string error(const char* model_type, const json& changes) {
  return error_of([&] { parse(model_type, changes); });
}

std::vector<std::optional<int64_t>> windows(const DecoderConfig& config) {
  std::vector<std::optional<int64_t>> all;
  for (const DecoderLayerConfig& layer : config.layers) all.push_back(layer.window);
  return all;
}

std::vector<std::optional<size_t>> ropes(const DecoderConfig& config) {
  std::vector<std::optional<size_t>> all;
  for (const DecoderLayerConfig& layer : config.layers) all.push_back(layer.rope);
  return all;
}

TEST(DecoderFamilies, EachReadsTheConfigOfItsModelType) {
  for (const DecoderFamily& family : decoder_families()) {
    if (family.part != nullptr) continue;
    bool found = false;
    for (const json& config : small_decoders()) {
      if (config.at("model_type") != family.model_type) continue;
      found = true;
      EXPECT_EQ(config.at("architectures").at(0), family.class_name);
      const DecoderConfig decoder = parse_decoder_config(config, family);
      EXPECT_EQ(decoder.model_type, family.model_type);
      EXPECT_EQ(decoder.layers.size(), 2u);
      EXPECT_EQ(error_of([&] { parse_decoder_config(changed(config, {{"use_cache", true}}), family); }), kNoError);
      EXPECT_THAT(error_of([&] { parse_decoder_config(changed(config, {{"sinks", 2}}), family); }),
                  AllOf(HasSubstr("config.json: sinks is 2"), HasSubstr(family.model_type)));
    }
    EXPECT_TRUE(found) << family.model_type;
  }
  EXPECT_THAT(error_of([] { parse_decoder_config(json::object(), "mamba"); }), HasSubstr("\"mamba\""));
}

json with_images(const json& changes = {}) {
  json text = changed(small_decoder("gemma3_text", "Gemma3ForCausalLM", {{"head_dim", 4}}), changes);
  return {{"model_type", "gemma3"},
          {"architectures", {"Gemma3ForConditionalGeneration"}},
          {"dtype", "bfloat16"},
          {"text_config", text},
          {"vision_config", {{"hidden_size", 16}}}};
}

TEST(DecoderFamilies, OfModelsWithImagesAreThoseOfTheirTextModel) {
  const DecoderFamily& family = decoder_family("gemma3");
  const DecoderConfig decoder = parse_decoder_config(with_images(), family);
  EXPECT_EQ(decoder.model_type, "gemma3_text");
  EXPECT_TRUE(decoder.is_part);
  const json saved = config_of_decoder(with_images(), family);
  EXPECT_EQ(saved.at("model_type"), "gemma3_text");
  EXPECT_EQ(saved.at("architectures"), json::array({"Gemma3ForCausalLM"}));
  EXPECT_EQ(saved.at("dtype"), "bfloat16");
  EXPECT_FALSE(saved.contains("vision_config"));
  const auto error = [&](const json& config) { return error_of([&] { parse_decoder_config(config, family); }); };
  EXPECT_THAT(error(with_images({{"sinks", 2}})), HasSubstr("text_config: sinks is 2"));
  json differently_tied = with_images();
  differently_tied["tie_word_embeddings"] = true;
  EXPECT_THAT(error(differently_tied), HasSubstr("tie_word_embeddings is true"));
  json without = with_images();
  without.erase("text_config");
  EXPECT_THAT(error(without), HasSubstr("text_config is missing"));
}

// Five layers with a window, then one without, which has a rotary embedding of its own.
TEST(DecoderLayers, OfGemma3) {
  const json twelve{{"num_hidden_layers", 12}, {"sliding_window", 9}};
  const DecoderConfig config = parse("gemma3_text", twelve);
  EXPECT_THAT(windows(config), ElementsAre(9, 9, 9, 9, 9, kNone, 9, 9, 9, 9, 9, kNone));
  EXPECT_THAT(ropes(config), ElementsAre(1, 1, 1, 1, 1, 0, 1, 1, 1, 1, 1, 0));
  ASSERT_EQ(config.ropes.size(), 2u);
  EXPECT_EQ(config.ropes[0].theta, 1e6);
  EXPECT_EQ(config.ropes[1].theta, 1e4);
  EXPECT_THAT(windows(parse("gemma3_text", {{"num_hidden_layers", 3}, {"sliding_window_pattern", 2}})),
              ElementsAre(4096, kNone, 4096));
  const DecoderConfig listed = parse("gemma3_text", {{"layer_types", {kFull, kSliding}}, {"sliding_window", 9}});
  EXPECT_THAT(windows(listed), ElementsAre(kNone, 9));
  EXPECT_THAT(ropes(listed), ElementsAre(0, 1));
  // Scaling is that of the layers without a window.
  const json scaling{{"rope_scaling", {{"rope_type", "linear"}, {"factor", 8}}}};
  EXPECT_EQ(parse("gemma3_text", scaling).ropes[0].type, RopeType::kLinear);
  EXPECT_EQ(parse("gemma3_text", scaling).ropes[1].type, RopeType::kDefault);
}

TEST(DecoderLayers, OfOlmo3) {
  const DecoderConfig config = parse("olmo3", {{"num_hidden_layers", 8}, {"sliding_window", 9}});
  EXPECT_THAT(windows(config), ElementsAre(9, 9, 9, kNone, 9, 9, 9, kNone));
  EXPECT_THAT(ropes(config), ElementsAre(1, 1, 1, 0, 1, 1, 1, 0));
  ASSERT_EQ(config.ropes.size(), 2u);
  for (const RopeConfig& rope : config.ropes) {
    EXPECT_TRUE(rope.keeps_fp32);
    EXPECT_EQ(rope.theta, 500000.0);
  }
  const DecoderConfig other = parse("olmo3", {{"rope_theta", 7}});
  EXPECT_EQ(other.ropes[0].theta, 7.0);
  EXPECT_EQ(other.ropes[1].theta, 500000.0);
}

TEST(DecoderLayers, OfSmolLM3) {
  const json eight{{"num_hidden_layers", 8}};
  EXPECT_THAT(ropes(parse("smollm3", eight)), ElementsAre(0, 0, 0, kNone, 0, 0, 0, kNone));
  EXPECT_THAT(windows(parse("smollm3", eight)), Each(kNone));
  const json three{{"num_hidden_layers", 3}, {"no_rope_layer_interval", 1}};
  EXPECT_THAT(ropes(parse("smollm3", three)), ElementsAre(kNone, kNone, kNone));
  const json listed = changed(three, {{"no_rope_layers", {0, 1, 0, 1}}});  // an element too many
  EXPECT_THAT(ropes(parse("smollm3", listed)), ElementsAre(kNone, 0, kNone));
  // Layers without positions have the window.
  const json window = changed(listed, {{"use_sliding_window", true}, {"sliding_window", 9}});
  EXPECT_THAT(windows(parse("smollm3", window)), ElementsAre(9, kNone, 9));
  EXPECT_THAT(windows(parse("smollm3", changed(window, {{"use_sliding_window", false}}))), Each(kNone));
  EXPECT_THAT(error("smollm3", changed(three, {{"no_rope_layers", {0, 1}}})),
              AllOf(HasSubstr("no_rope_layers is [0,1]"), HasSubstr("each of the 3 layers")));
  EXPECT_EQ(parse("smollm3").ropes.at(0).theta, 2e6);
}

TEST(DecoderLayers, OfQwen) {
  for (const char* type : {"qwen2", "qwen3"}) {
    const json window{{"num_hidden_layers", 3}, {"sliding_window", 9}, {"max_window_layers", 1}};
    EXPECT_THAT(windows(parse(type, window)), Each(kNone));
    const json used = changed(window, {{"use_sliding_window", true}});
    EXPECT_THAT(windows(parse(type, used)), ElementsAre(kNone, 9, 9));
    EXPECT_THAT(windows(parse(type, changed(used, {{"sliding_window", nullptr}}))), Each(kNone));
    EXPECT_THAT(windows(parse(type, {{"use_sliding_window", true}, {"num_hidden_layers", 30}}))[27], kNone);
    EXPECT_THAT(windows(parse(type, {{"use_sliding_window", true}, {"num_hidden_layers", 30}}))[28], 4096);
    const json types{{"layer_types", {kSliding, kFull, kFull}}};
    EXPECT_THAT(windows(parse(type, changed(used, types))), ElementsAre(9, kNone, kNone));
    EXPECT_THAT(error(type, changed(window, types)), HasSubstr("without sliding_attention"));
  }
}

TEST(DecoderLayers, OfFamiliesWithOneRotaryEmbedding) {
  const json nine{{"num_hidden_layers", 3}, {"sliding_window", 9}};
  const json none{{"num_hidden_layers", 3}, {"sliding_window", nullptr}};
  EXPECT_THAT(windows(parse("gemma2", nine)), ElementsAre(9, kNone, 9));
  EXPECT_THAT(windows(parse("mistral", nine)), ElementsAre(9, 9, 9));
  EXPECT_THAT(windows(parse("ministral", nine)), ElementsAre(9, 9, 9));
  EXPECT_THAT(windows(parse("phi3", changed(nine, {{"hidden_size", 24}}))), ElementsAre(9, 9, 9));
  for (const char* type : {"mistral", "ministral"}) {
    EXPECT_THAT(windows(parse(type)), ElementsAre(4096, 4096));
    EXPECT_THAT(windows(parse(type, none)), Each(kNone));
    EXPECT_THAT(ropes(parse(type)), ElementsAre(0, 0));
  }
  for (const char* type : {"llama", "granite", "gemma", "phi3", "olmo2", "glm4"}) {
    EXPECT_THAT(windows(parse(type)), Each(kNone));
    EXPECT_THAT(ropes(parse(type)), ElementsAre(0, 0));
  }
  const json types{{"layer_types", {kFull, kSliding}}, {"sliding_window", 9}};
  EXPECT_THAT(windows(parse("ministral", types)), ElementsAre(kNone, 9));
  EXPECT_THAT(error("ministral", changed(types, {{"sliding_window", nullptr}})), HasSubstr("sliding_window is null"));
  EXPECT_THAT(error("mistral", types), HasSubstr("models that have it are of type ministral"));
  EXPECT_THAT(error("gemma2", {{"sliding_window", 0}}), HasSubstr("sliding_window is 0"));
  EXPECT_THAT(error("gemma2", {{"layer_types", {kFull}}}), HasSubstr("a list of 2"));
}

TEST(DecoderFamilies, RotateHeadsTheirWay) {
  const DecoderConfig glm4 = parse("glm4", {{"head_dim", 8}});
  EXPECT_EQ(glm4.ropes.at(0).rotary_dim, 4);
  EXPECT_EQ(glm4.ropes.at(0).pairs, RopePairs::kNeighbours);
  EXPECT_EQ(parse("phi3", {{"hidden_size", 24}, {"partial_rotary_factor", 0.5}}).ropes.at(0).rotary_dim, 2);
  EXPECT_TRUE(parse("olmo2").ropes.at(0).keeps_fp32);
  EXPECT_FALSE(parse("llama").ropes.at(0).keeps_fp32);
  EXPECT_EQ(parse("llama").ropes.at(0).rotary_dim, 2);
}

// An absent key has the family's default, a null value asks for as many as query heads.
TEST(DecoderFamilies, HaveDefaultsOfHeads) {
  const json eight{{"hidden_size", 32}, {"num_attention_heads", 8}};
  const auto without = [&](const char* model_type) {
    json config = small_decoder(model_type, "", eight);
    config.erase("num_key_value_heads");
    return config;
  };
  EXPECT_EQ(parse_decoder_config(without("llama"), "llama").num_key_value_heads, 8);
  EXPECT_EQ(parse_decoder_config(without("mistral"), "mistral").num_key_value_heads, 8);
  EXPECT_EQ(parse_decoder_config(without("gemma2"), "gemma2").num_key_value_heads, 4);
  EXPECT_EQ(parse_decoder_config(without("glm4"), "glm4").num_key_value_heads, 2);
  EXPECT_THAT(error_of([&] { parse_decoder_config(without("gemma"), "gemma"); }),
              HasSubstr("num_key_value_heads is missing; it must be a divisor of num_attention_heads, 8; the default "
                        "of gemma is 16"));
  EXPECT_EQ(parse("gemma2", changed(eight, {{"num_key_value_heads", nullptr}})).num_key_value_heads, 8);
  EXPECT_EQ(parse("gemma2", eight).head_dim, 256);
  EXPECT_EQ(parse("gemma2", changed(eight, {{"head_dim", nullptr}})).head_dim, 4);
  EXPECT_EQ(parse("llama", eight).head_dim, 4);
  EXPECT_THAT(error("gemma2", {{"hidden_size", 13}}), HasSubstr("a divisor of hidden_size, 13"));
  EXPECT_EQ(error("gemma", {{"hidden_size", 13}}), kNoError);
}

TEST(DecoderFamilies, HaveDefaultsOfPadding) {
  json config = small_decoder("glm4", "");
  config.erase("pad_token_id");
  const auto padding = [&](int64_t vocab_size) {
    return parse_decoder_config(changed(config, {{"vocab_size", vocab_size}}), "glm4").pad_token_id;
  };
  EXPECT_EQ(padding(151330), 151329);
  EXPECT_THAT(error_of([&] { padding(151329); }), HasSubstr("pad_token_id is missing; it must be null or an id"));
  EXPECT_EQ(parse("glm4").pad_token_id, kNone);
  EXPECT_EQ(parse("glm4", {{"pad_token_id", -1}}).pad_token_id, 30);
  EXPECT_THAT(error("glm4", {{"pad_token_id", -32}}), HasSubstr("pad_token_id is -32"));
}

TEST(DecoderFamilies, SoftcapsAreAbsentNullOrPositive) {
  EXPECT_EQ(parse("gemma2").attention_softcap, 50.0);
  EXPECT_EQ(parse("gemma2").logits.softcap, 30.0);
  const DecoderConfig without =
      parse("gemma2", {{"attn_logit_softcapping", nullptr}, {"final_logit_softcapping", nullptr}});
  EXPECT_EQ(without.attention_softcap, kNone);
  EXPECT_EQ(without.logits.softcap, kNone);
  EXPECT_EQ(parse("gemma3_text").logits.softcap, kNone);
  EXPECT_EQ(parse("gemma3_text", {{"final_logit_softcapping", 2}}).logits.softcap, 2.0);
  EXPECT_THAT(error("gemma2", {{"attn_logit_softcapping", 0}}), HasSubstr("attn_logit_softcapping is 0"));
  EXPECT_THAT(error("gemma3_text", {{"attn_logit_softcapping", 50}}), HasSubstr("does not apply it in this family"));
}

TEST(DecoderFamilies, Multiply) {
  const DecoderConfig gemma = parse("gemma2", {{"query_pre_attn_scalar", 144}});
  EXPECT_EQ(gemma.embedding_multiplier, std::sqrt(12.0));
  EXPECT_EQ(gemma.attention_scale, 1.0 / 12);
  EXPECT_EQ(parse("gemma2").attention_scale, 1.0 / 16);
  const DecoderConfig granite = parse("granite", {{"embedding_multiplier", 3},
                                                  {"attention_multiplier", 0.4},
                                                  {"residual_multiplier", 0.6},
                                                  {"logits_scaling", 2}});
  EXPECT_EQ(granite.embedding_multiplier, 3.0);
  EXPECT_EQ(granite.attention_scale, 0.4);
  EXPECT_EQ(granite.residual_multiplier, 0.6);
  EXPECT_EQ(granite.logits.divisor, 2.0);
  EXPECT_EQ(parse("granite").attention_scale, 1.0);
  EXPECT_EQ(parse("llama").attention_scale, kNone);
}

TEST(DecoderFamilies, GemmasActivationHasTwoKeys) {
  const std::string tanh = "gelu_pytorch_tanh";
  EXPECT_EQ(parse("gemma").activation, tanh);
  EXPECT_EQ(parse("gemma", {{"hidden_act", "gelu"}}).activation, tanh);
  EXPECT_EQ(parse("gemma", {{"hidden_act", "gelu"}, {"hidden_activation", tanh}}).activation, tanh);
  EXPECT_THAT(error("gemma", {{"hidden_activation", "silu"}}), HasSubstr("hidden_activation is \"silu\""));
  EXPECT_EQ(parse("gemma2", {{"hidden_activation", "silu"}}).activation, "silu");
  EXPECT_EQ(parse("gemma2", {{"hidden_act", "gelu"}}).activation, tanh);
  EXPECT_THAT(error("gemma2", {{"hidden_act", "silu"}}), HasSubstr("absent or gelu_pytorch_tanh"));
}

TEST(DecoderFamilies, UnsupportedValuesAreErrors) {
  for (const char* type : {"gemma", "gemma2", "gemma3_text"}) {
    EXPECT_THAT(error(type, {{"use_bidirectional_attention", true}}), HasSubstr("use_bidirectional_attention is true"));
  }
  EXPECT_THAT(error("phi3", {{"hidden_size", 24}, {"embd_pdrop", 0.1}}), HasSubstr("embd_pdrop is 0.1"));
  EXPECT_EQ(error("phi3", {{"hidden_size", 24}, {"embd_pdrop", 0.0}}), kNoError);
  EXPECT_THAT(error("llama", {{"rope_interleaved", true}}), HasSubstr("rope_interleaved is true"));
  EXPECT_THAT(error("llama", {{"sliding_window", 9}}), HasSubstr("sliding_window is 9"));
  EXPECT_THAT(error("granite", {{"logits_scaling", 0}}), HasSubstr("logits_scaling is 0"));
  EXPECT_THAT(error("granite", {{"attention_multiplier", -0.4}}), HasSubstr("attention_multiplier is -0.4"));
}

}  // namespace
}  // namespace fsdp::models::families_test
