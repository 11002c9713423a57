#include "models/rope.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "support/faults/error_of.h"

namespace fsdp::models::rope_config_test {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;

RopeConfig parse(const json& config, const RopeFamily& family = {}) {
  return parse_rope_config(ConfigReader(config, "config.json"), /*head_dim=*/8, 2048, family);
}

RopeConfig parse_scaling(const json& scaling, const RopeFamily& family = {}) {
  return parse({{"rope_scaling", scaling}}, family);
}

std::string scaling_error(const json& scaling, const RopeFamily& family = {}) {
  return error_of([&] { parse_scaling(scaling, family); });
}

json with(json object, const json& changes) {
  object.update(changes);
  return object;
}

const json kLlama3{{"rope_type", "llama3"},
                   {"factor", 8.0},
                   {"low_freq_factor", 1.0},
                   {"high_freq_factor", 4.0},
                   {"original_max_position_embeddings", 8192}};

TEST(RopeConfig, BothSpellingsSayTheSame) {
  json newer = kLlama3;
  newer["rope_theta"] = 500000.0;
  for (const json& config : {json{{"rope_theta", 500000.0}, {"rope_scaling", kLlama3}},
                             json{{"rope_theta", 1.0}, {"rope_parameters", newer}}, json{{"rope_parameters", newer}}}) {
    const RopeConfig rope = parse(config);
    EXPECT_EQ(rope.type, RopeType::kLlama3);
    EXPECT_EQ(rope.theta, 500000.0);
    EXPECT_EQ(rope.factor, 8.0);
    EXPECT_EQ(rope.original_max_position_embeddings, 8192);
  }
}

TEST(RopeConfig, Defaults) {
  for (const json& config : {json::object(), json{{"rope_scaling", nullptr}}, json{{"rope_parameters", json::object()}},
                             json{{"rope_scaling", {{"type", "default"}}}}}) {
    EXPECT_EQ(parse(config).type, RopeType::kDefault);
    EXPECT_EQ(parse(config).theta, 10000.0);
  }
  json without_length = kLlama3;
  without_length.erase("original_max_position_embeddings");
  EXPECT_EQ(parse({{"rope_scaling", without_length}}).original_max_position_embeddings, 2048);
  EXPECT_EQ(
      parse({{"rope_scaling", kLlama3}, {"original_max_position_embeddings", 77}}).original_max_position_embeddings,
      77);
}

TEST(RopeConfig, ErrorsNameKeyAndAcceptedValues) {
  const auto error = [](const json& config) { return error_of([&] { parse(config); }); };
  EXPECT_THAT(
      error({{"rope_scaling", {{"rope_type", "dynamic"}, {"factor", 2}}}}),
      AllOf(HasSubstr("rope_scaling: rope_type is \"dynamic\""), HasSubstr("default, linear, llama3, yarn, longrope")));
  EXPECT_THAT(error({{"rope_parameters", {{"rope_type", 3}}}}), HasSubstr("rope_parameters: rope_type is 3"));
  EXPECT_THAT(error({{"rope_scaling", {{"type", "linear"}}}}), HasSubstr("factor is missing"));
  EXPECT_THAT(error({{"rope_scaling", {{"type", "linear"}, {"factor", 0}}}}), HasSubstr("factor is 0"));
  EXPECT_THAT(error({{"rope_theta", -1.0}}), HasSubstr("rope_theta is -1.0"));
  EXPECT_THAT(error({{"rope_theta", "10000"}}), HasSubstr("rope_theta is \"10000\""));
  EXPECT_THAT(error({{"rope_scaling", "llama3"}}), HasSubstr("rope_scaling: expected a JSON object"));
  EXPECT_THAT(error({{"rope_parameters", {{"partial_rotary_factor", 0.5}}}}),
              HasSubstr("partial_rotary_factor is 0.5"));
  json swapped = kLlama3;
  swapped["low_freq_factor"] = 4.0;
  EXPECT_THAT(error({{"rope_scaling", swapped}}), HasSubstr("high_freq_factor is 4.0"));
  json without_factor = kLlama3;
  without_factor.erase("low_freq_factor");
  EXPECT_THAT(error({{"rope_scaling", without_factor}}), HasSubstr("low_freq_factor is missing"));
}

// A scaling that is empty or null says nothing.
TEST(RopeConfig, ScalingThatIsNotEmptyWinsOverParameters) {
  const json linear{{"type", "linear"}, {"factor", 4.0}};
  EXPECT_EQ(parse({{"rope_parameters", kLlama3}, {"rope_scaling", linear}}).type, RopeType::kLinear);
  EXPECT_EQ(parse({{"rope_parameters", kLlama3}, {"rope_scaling", linear}}).factor, 4.0);
  for (const json& nothing : {json(), json::object()}) {
    EXPECT_EQ(parse({{"rope_parameters", kLlama3}, {"rope_scaling", nothing}}).type, RopeType::kLlama3);
  }
}

TEST(RopeConfig, KeysOfOtherTypesAreErrors) {
  EXPECT_THAT(scaling_error({{"type", "linear"}, {"factor", 2}, {"beta_fast", 32}}), HasSubstr("beta_fast is 32"));
  EXPECT_THAT(scaling_error({{"type", "default"}, {"factor", 2}}), HasSubstr("factor is 2"));
  EXPECT_THAT(scaling_error(with(kLlama3, {{"mscale", 1}})), HasSubstr("mscale is 1"));
  EXPECT_EQ(scaling_error({{"rope_type", "linear"},
                           {"type", "linear"},
                           {"factor", 2},
                           {"beta_fast", nullptr},
                           {"original_max_position_embeddings", 8}}),
            testing::kNoError);
}

const json kYarn{{"rope_type", "yarn"}, {"original_max_position_embeddings", 256}};

TEST(RopeConfig, YarnHasTheDefaultsOfThePaper) {
  const RopeConfig rope = parse_scaling(kYarn);
  EXPECT_EQ(rope.type, RopeType::kYarn);
  EXPECT_EQ(rope.original_max_position_embeddings, 256);
  EXPECT_EQ(rope.factor, 8.0);  // 2048 / 256
  EXPECT_EQ(rope.beta_fast, 32.0);
  EXPECT_EQ(rope.beta_slow, 1.0);
  EXPECT_TRUE(rope.truncate);
  EXPECT_DOUBLE_EQ(rope.attention_factor, 0.1 * std::log(8.0) + 1.0);
  EXPECT_EQ(parse_scaling(with(kYarn, {{"factor", 0.5}})).attention_factor, 1.0);
}

TEST(RopeConfig, YarnReadsItsKeys) {
  const RopeConfig rope = parse_scaling(with(
      kYarn, {{"factor", 4.0}, {"beta_fast", 20}, {"beta_slow", 2}, {"truncate", false}, {"attention_factor", 1.25}}));
  EXPECT_EQ(rope.factor, 4.0);
  EXPECT_EQ(rope.beta_fast, 20.0);
  EXPECT_EQ(rope.beta_slow, 2.0);
  EXPECT_FALSE(rope.truncate);
  EXPECT_EQ(rope.attention_factor, 1.25);
  EXPECT_THAT(error_of([] { parse({{"rope_theta", 1.0}, {"rope_scaling", kYarn}}); }),
              HasSubstr("other than 1 with yarn"));
}

// The ratio of two factors, if both are given and not zero.
TEST(RopeConfig, YarnAttentionFactorFollowsMscale) {
  const auto factor = [](const json& changes) { return parse_scaling(with(kYarn, changes)).attention_factor; };
  const double log8 = std::log(8.0), plain = 0.1 * log8 + 1;
  EXPECT_DOUBLE_EQ(factor({{"mscale", 0.7}, {"mscale_all_dim", 1.3}}), (0.07 * log8 + 1) / (0.13 * log8 + 1));
  EXPECT_DOUBLE_EQ(factor({{"mscale", 0.7}}), plain);
  EXPECT_DOUBLE_EQ(factor({{"mscale_all_dim", 0.7}}), plain);
  EXPECT_DOUBLE_EQ(factor({{"mscale", 0.7}, {"mscale_all_dim", 0.0}}), plain);
  EXPECT_EQ(factor({{"mscale", 0.7}, {"mscale_all_dim", 1.3}, {"attention_factor", 0.5}}), 0.5);
  EXPECT_EQ(factor({{"mscale", 0.7}, {"mscale_all_dim", 1.3}, {"factor", 1}}), 1.0);
}

const json kLongrope{{"rope_type", "longrope"},
                     {"short_factor", {1.0, 1.1, 1.2, 1.3}},
                     {"long_factor", {2, 3, 4, 5}},
                     {"original_max_position_embeddings", 256}};

TEST(RopeConfig, LongropeHasADivisorForEachPair) {
  const RopeConfig rope = parse_scaling(kLongrope);
  EXPECT_EQ(rope.type, RopeType::kLongrope);
  EXPECT_THAT(rope.short_factor, ElementsAre(1.0, 1.1, 1.2, 1.3));
  EXPECT_THAT(rope.long_factor, ElementsAre(2, 3, 4, 5));
  EXPECT_EQ(rope.factor, 8.0);  // 2048 / 256
  EXPECT_DOUBLE_EQ(rope.attention_factor, std::sqrt(1 + std::log(8.0) / std::log(256.0)));
  EXPECT_THAT(scaling_error(with(kLongrope, {{"short_factor", {1, 1, 1}}})), HasSubstr("a list of 4 numbers"));
  EXPECT_THAT(scaling_error(with(kLongrope, {{"long_factor", {1, 1, 1, 0}}})), HasSubstr("long_factor is [1,1,1,0]"));
  EXPECT_THAT(scaling_error(with(kLongrope, {{"long_factor", nullptr}})), HasSubstr("long_factor is missing"));
}

TEST(RopeConfig, LongropeAttentionFactor) {
  const auto factor = [](const json& changes) { return parse_scaling(with(kLongrope, changes)).attention_factor; };
  EXPECT_DOUBLE_EQ(factor({{"factor", 3}}), std::sqrt(1 + std::log(3.0) / std::log(256.0)));
  EXPECT_EQ(factor({{"factor", 1}}), 1.0);
  EXPECT_EQ(factor({{"factor", 0.5}}), 1.0);
  EXPECT_EQ(factor({{"attention_factor", 1.19}}), 1.19);
  const json of_one_token{{"original_max_position_embeddings", 1}};
  EXPECT_THAT(scaling_error(with(kLongrope, of_one_token)), HasSubstr("original_max_position_embeddings is 1"));
  EXPECT_EQ(factor(with(of_one_token, {{"attention_factor", 2}})), 2.0);
  EXPECT_EQ(factor(with(of_one_token, {{"factor", 1}})), 1.0);
}

TEST(RopeFamily, SaysDefaults) {
  const RopeConfig rope =
      parse(json::object(),
            {.theta = 7.0, .partial_rotary_factor = 0.5, .may_be_partial = true, .pairs = RopePairs::kNeighbours});
  EXPECT_EQ(rope.theta, 7.0);
  EXPECT_EQ(rope.rotary_dim, 4);
  EXPECT_EQ(rope.pairs, RopePairs::kNeighbours);
  EXPECT_EQ(parse(json::object()).rotary_dim, 8);
  EXPECT_EQ(parse(json::object()).pairs, RopePairs::kHalves);
}

TEST(RopeFamily, MayRotateAPartOfEachHead) {
  const RopeFamily partial{.may_be_partial = true};
  const json quarter{{"partial_rotary_factor", 0.25}}, half{{"partial_rotary_factor", 0.5}};
  EXPECT_EQ(parse(quarter, partial).rotary_dim, 2);
  EXPECT_EQ(parse({{"rope_parameters", quarter}}, partial).rotary_dim, 2);
  EXPECT_EQ(parse(with(quarter, {{"rope_parameters", half}}), partial).rotary_dim, 4);
  EXPECT_EQ(parse({{"partial_rotary_factor", 1}}).rotary_dim, 8);
  for (const double factor : {0.0, 0.2, 0.4}) {  // 0, 1 and 3 elements
    EXPECT_THAT(error_of([&] { parse({{"partial_rotary_factor", factor}}, partial); }),
                AllOf(HasSubstr("partial_rotary_factor is "), HasSubstr("is even and not empty")));
  }
  EXPECT_THAT(error_of([&] { parse(half); }), HasSubstr("these models rotate whole heads"));
  // A divisor for each pair that is rotated.
  EXPECT_THAT(error_of([&] { parse(with(half, {{"rope_scaling", kLongrope}}), partial); }),
              HasSubstr("a list of 2 numbers"));
}

TEST(RopeFamily, Phi3CallsLongropeByThreeNames) {
  const RopeFamily phi3{.knows_only_longrope = true};
  for (const char* name : {"longrope", "su", "yarn"}) {
    EXPECT_EQ(parse_scaling(with(kLongrope, {{"rope_type", name}}), phi3).type, RopeType::kLongrope);
  }
  EXPECT_EQ(parse_scaling({{"type", "default"}}, phi3).type, RopeType::kDefault);
  EXPECT_THAT(scaling_error({{"type", "linear"}, {"factor", 2}}, phi3), HasSubstr("default, longrope, su, yarn"));
  EXPECT_THAT(scaling_error(with(kLongrope, {{"rope_type", "su"}})), HasSubstr("rope_type is \"su\""));
}

TEST(RopeFamily, OriginalLengthAtTheTopLevelWins) {
  const std::string key = "original_max_position_embeddings";
  const RopeFamily phi3{.original_max_position_embeddings = 512};
  const auto length = [&](const json& top, const json& inside, const RopeFamily& family) {
    json scaling = with(kLongrope, inside), config{{"rope_scaling", scaling}};
    return parse(with(config, top), family).original_max_position_embeddings;
  };
  EXPECT_EQ(length(json::object(), {{key, 100}}, {}), 100);
  EXPECT_EQ(length(json::object(), {{key, nullptr}}, {}), 2048);
  EXPECT_EQ(length({{key, 77}}, {{key, 100}}, {}), 77);
  EXPECT_EQ(length({{key, 77}}, {{key, 100}}, phi3), 77);
  EXPECT_EQ(length(json::object(), {{key, 100}}, phi3), 512);
  EXPECT_EQ(parse({{"rope_scaling", kLongrope}}, phi3).factor, 4.0);  // 2048 / 512
}

RopeConfig parse_full(const json& config) {
  return parse_rope_of_layer_type(ConfigReader(config, "config.json"), "full_attention", 8, 2048, "rope_theta", 1e6,
                                  /*takes_scaling=*/true);
}

RopeConfig parse_sliding(const json& config, const std::string& theta_key = "rope_local_base_freq") {
  return parse_rope_of_layer_type(ConfigReader(config, "config.json"), "sliding_attention", 8, 2048, theta_key, 1e4,
                                  /*takes_scaling=*/false);
}

TEST(RopeOfLayerType, OlderSpelling) {
  const json config{{"rope_theta", 5e5}, {"rope_local_base_freq", 2e4}, {"rope_scaling", kLlama3}};
  EXPECT_EQ(parse_full(config).theta, 5e5);
  EXPECT_EQ(parse_full(config).type, RopeType::kLlama3);
  EXPECT_EQ(parse_full(config).rotary_dim, 8);
  EXPECT_EQ(parse_sliding(config).theta, 2e4);
  EXPECT_EQ(parse_sliding(config).type, RopeType::kDefault);
  EXPECT_EQ(parse_sliding(config, "").theta, 1e4);
  EXPECT_EQ(parse_full(json::object()).theta, 1e6);
  EXPECT_EQ(parse_sliding(json::object()).theta, 1e4);
}

TEST(RopeOfLayerType, NewerSpelling) {
  const json linear{{"rope_type", "linear"}, {"factor", 4}, {"rope_theta", 3e4}};
  const json config{{"rope_theta", 5e5},
                    {"rope_parameters", {{"full_attention", kLlama3}, {"sliding_attention", linear}}}};
  EXPECT_EQ(parse_full(config).theta, 5e5);  // none inside
  EXPECT_EQ(parse_full(config).type, RopeType::kLlama3);
  EXPECT_EQ(parse_full(config).original_max_position_embeddings, 8192);
  EXPECT_EQ(parse_sliding(config).theta, 3e4);
  EXPECT_EQ(parse_sliding(config).type, RopeType::kLinear);
  const json of_one{{"rope_parameters", {{"full_attention", linear}}}};
  EXPECT_EQ(parse_full(of_one).theta, 3e4);
  EXPECT_EQ(parse_sliding(of_one).theta, 1e4);
  EXPECT_EQ(parse_sliding(of_one).type, RopeType::kDefault);
}

// As in transformers, which reads the length of a layer type in its object alone.
TEST(RopeOfLayerType, LengthAtTheTopLevelIsNotRead) {
  const json config{{"original_max_position_embeddings", 77}, {"rope_parameters", {{"full_attention", kYarn}}}};
  EXPECT_EQ(parse_full(config).original_max_position_embeddings, 256);
}

TEST(RopeOfLayerType, ErrorsNameTheObject) {
  const auto error = [](const json& config) { return error_of([&] { parse_full(config); }); };
  EXPECT_THAT(error({{"rope_parameters", kLlama3}}),
              HasSubstr("in these models its keys are full_attention and sliding_attention"));
  EXPECT_THAT(error({{"rope_parameters", {{"full_attention", kYarn}}}, {"rope_scaling", kYarn}}),
              HasSubstr("it must be absent beside rope_parameters"));
  EXPECT_THAT(error({{"rope_parameters", {{"full_attention", {{"rope_type", "dynamic"}}}}}}),
              HasSubstr("config.json: rope_parameters: full_attention: rope_type is \"dynamic\""));
  EXPECT_THAT(error({{"rope_parameters", {{"full_attention", with(kYarn, {{"truncate", false}})}}}}),
              HasSubstr("truncate is false; it must be absent"));
  EXPECT_THAT(error({{"rope_parameters", {{"full_attention", {{"partial_rotary_factor", 0.5}}}}}}),
              HasSubstr("partial_rotary_factor is 0.5"));
  EXPECT_THAT(error({{"rope_parameters", {{"full_attention", 3}}}}), HasSubstr("expected a JSON object, got 3"));
  EXPECT_THAT(error({{"rope_theta", 0}}), HasSubstr("rope_theta is 0"));
}

}  // namespace
}  // namespace fsdp::models::rope_config_test
