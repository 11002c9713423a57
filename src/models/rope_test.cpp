#include "models/rope.h"

#include <torch/torch.h>

#include <cmath>
#include <numbers>

#include "support/faults/error_of.h"

namespace fsdp::models::rope_test {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using testing::error_of;
using ::testing::HasSubstr;

RopeConfig parse(const json& config) {
  return parse_rope_config(ConfigReader(config, "config.json"), /*head_dim=*/8, 2048);
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

// The definition, in complex numbers: pair i of position p turns by p / theta^(2i/d).
TEST(Rope, RotatesPairsByTheirAngles) {
  const int64_t head_dim = 6, sequence = 5;
  RopeConfig rope;
  rope.theta = 100.0;
  rope.rotary_dim = head_dim;
  torch::manual_seed(0);
  const auto x = torch::randn({2, 3, sequence, head_dim}, torch::kFloat64);
  const auto y = apply_rotary(x, rotary_factors(rope, sequence, x.options()));
  for (int64_t position = 0; position < sequence; ++position) {
    for (int64_t i = 0; i < head_dim / 2; ++i) {
      const double angle = position / std::pow(100.0, 2.0 * i / head_dim);
      const double re = x[1][2][position][i].item<double>(), im = x[1][2][position][i + 3].item<double>();
      EXPECT_NEAR(y[1][2][position][i].item<double>(), re * std::cos(angle) - im * std::sin(angle), 1e-6);
      EXPECT_NEAR(y[1][2][position][i + 3].item<double>(), im * std::cos(angle) + re * std::sin(angle), 1e-6);
    }
  }
}

// Returns the angle of pair i at position 1, computed from the factors.
double frequency(const RopeConfig& rope, int64_t i) {
  const auto factors = rotary_factors(rope, 2, torch::kFloat64);
  return std::atan2(factors.sin[1][i + 4].item<double>(), factors.cos[1][i].item<double>());
}

TEST(Rope, Llama3KeepsShortWavelengthsAndStretchesLongOnes) {
  RopeConfig plain;
  plain.rotary_dim = 8;
  plain.theta = 10000.0;  // frequencies 1, 0.1, 0.01, 0.001: wavelengths 6, 63, 628, 6283
  RopeConfig scaled = plain;
  scaled.type = RopeType::kLlama3;
  scaled.factor = 8.0;
  scaled.original_max_position_embeddings = 1000;  // short below 250, long above 1000
  EXPECT_NEAR(frequency(scaled, 0), 1.0, 1e-6);
  EXPECT_NEAR(frequency(scaled, 1), 0.1, 1e-7);
  EXPECT_NEAR(frequency(scaled, 3), 0.001 / 8, 1e-9);
  const double smooth = (1000 * 0.01 / (2 * std::numbers::pi) - 1) / 3;
  EXPECT_NEAR(frequency(scaled, 2), (1 - smooth) * 0.01 / 8 + smooth * 0.01, 1e-8);
  scaled.type = RopeType::kLinear;
  EXPECT_NEAR(frequency(scaled, 0), 1.0 / 8, 1e-7);
}

}  // namespace
}  // namespace fsdp::models::rope_test
