#include "models/rope.h"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

namespace fsdp::models::rope_test {
namespace {

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
  return std::atan2(factors.sin[1][i + rope.rotary_dim / 2].item<double>(), factors.cos[1][i].item<double>());
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

std::vector<double> frequencies(const RopeConfig& rope) {
  std::vector<double> all;
  for (int64_t i = 0; i < rope.rotary_dim / 2; ++i) all.push_back(frequency(rope, i));
  return all;
}

// The frequencies by section 3.2 of YaRN, where the borders of the ramp lie at the pairs that turn beta_fast and
// beta_slow times in the original context. They are found by bisection.
std::vector<double> yarn(const RopeConfig& rope) {
  const auto dim = static_cast<double>(rope.rotary_dim);
  const auto frequency_at = [&](double pair) { return std::pow(rope.theta, -2 * pair / dim); };
  const auto pair_that_turns = [&](double turns) {
    double low = -1000, high = 1000;
    for (int i = 0; i < 100; ++i) {
      const double middle = (low + high) / 2, length = static_cast<double>(rope.original_max_position_embeddings);
      (frequency_at(middle) * length > turns * 2 * std::numbers::pi ? low : high) = middle;
    }
    return low;
  };
  double first = pair_that_turns(rope.beta_fast), last = pair_that_turns(rope.beta_slow);
  if (rope.truncate) {
    first = std::floor(first);
    last = std::ceil(last);
  }
  first = std::max(first, 0.0);
  last = std::min(last, dim - 1);
  std::vector<double> all;
  for (int64_t i = 0; i < rope.rotary_dim / 2; ++i) {
    const double pair = static_cast<double>(i), kept = frequency_at(pair);
    const double divided = std::clamp((pair - first) / (last - first), 0.0, 1.0);
    all.push_back(divided * kept / rope.factor + (1 - divided) * kept);
  }
  return all;
}

// Frequencies are computed in fp32.
void expect_near(const std::vector<double>& got, const std::vector<double>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-6 * want[i]) << "pair " << i;
}

RopeConfig yarn_config() {
  RopeConfig rope;
  rope.type = RopeType::kYarn;
  rope.rotary_dim = 32;
  rope.theta = 900.0;
  rope.factor = 4.0;
  rope.original_max_position_embeddings = 512;
  return rope;
}

TEST(Rope, YarnDividesWhatTurnsSeldom) {
  for (const bool truncate : {true, false}) {
    RopeConfig rope = yarn_config();
    rope.truncate = truncate;
    expect_near(frequencies(rope), yarn(rope));
    // The borders are 2.2 and 10.3 without truncation.
    EXPECT_NEAR(frequency(rope, 2), std::pow(900.0, -2.0 / 16), 1e-6);
    EXPECT_NEAR(frequency(rope, 11), std::pow(900.0, -11.0 / 16) / 4, 1e-6);
    rope.beta_fast = 3.5;
    rope.beta_slow = 1.5;
    expect_near(frequencies(rope), yarn(rope));
    rope.original_max_position_embeddings = 100000;  // the ramp begins among the pairs, and ends after them
    rope.beta_fast = 64;
    expect_near(frequencies(rope), yarn(rope));
  }
}

// Where both borders are pair 0, it alone is kept.
TEST(Rope, YarnOfAShortContextDividesAllPairsButTheFirst) {
  RopeConfig rope = yarn_config();
  rope.original_max_position_embeddings = 6;
  std::vector<double> want = {1.0};
  for (int64_t i = 1; i < 16; ++i) want.push_back(std::pow(900.0, -static_cast<double>(i) / 16) / 4);
  expect_near(frequencies(rope), want);
}

TEST(Rope, LongropeTakesDivisorsBySequence) {
  RopeConfig rope;
  rope.type = RopeType::kLongrope;
  rope.rotary_dim = 4;
  rope.theta = 100.0;
  rope.original_max_position_embeddings = 6;
  rope.short_factor = {1.0, 1.5};
  rope.long_factor = {3.0, 7.0};
  for (int64_t sequence : {2, 6, 7, 50}) {
    const std::vector<double>& divisors = sequence <= 6 ? rope.short_factor : rope.long_factor;
    const auto factors = rotary_factors(rope, sequence, torch::kFloat64);
    for (int64_t i = 0; i < 2; ++i) {
      const double angle = static_cast<double>(sequence - 1) / (divisors[i] * std::pow(100.0, i / 2.0));
      EXPECT_NEAR(factors.cos[sequence - 1][i].item<double>(), std::cos(angle), 1e-5);
      EXPECT_NEAR(factors.sin[sequence - 1][2 + i].item<double>(), std::sin(angle), 1e-5);
    }
  }
}

TEST(Rope, AttentionFactorMultipliesTheLengthOfVectors) {
  torch::manual_seed(0);
  const auto x = torch::randn({1, 2, 9, 32}, torch::kFloat64);
  RopeConfig rope = yarn_config();
  const auto plain = apply_rotary(x, rotary_factors(rope, 9, x.options()));
  EXPECT_TRUE(torch::allclose(plain.norm(2, -1), x.norm(2, -1), 1e-6));
  rope.attention_factor = 1.375;
  const auto scaled = apply_rotary(x, rotary_factors(rope, 9, x.options()));
  EXPECT_TRUE(torch::allclose(scaled, 1.375 * plain, 1e-6, 1e-6));
}

RopeConfig plain_config(int64_t rotary_dim, RopePairs pairs = RopePairs::kHalves) {
  RopeConfig rope;
  rope.rotary_dim = rotary_dim;
  rope.theta = 100.0;
  rope.pairs = pairs;
  return rope;
}

TEST(Rope, NeighboursAreComplexNumbers) {
  const int64_t head_dim = 6, sequence = 5;
  torch::manual_seed(0);
  const auto x = torch::randn({2, 3, sequence, head_dim}, torch::kFloat64);
  const auto numbers = torch::view_as_complex(x.unflatten(-1, {-1, 2}));
  const auto frequencies = torch::pow(100.0, -torch::arange(3, torch::kFloat64) / 3);
  const auto angles = torch::outer(torch::arange(sequence, torch::kFloat64), frequencies);
  const auto want = torch::view_as_real(numbers * torch::polar(torch::ones_like(angles), angles)).flatten(-2);
  const RopeConfig rope = plain_config(head_dim, RopePairs::kNeighbours);
  EXPECT_TRUE(torch::allclose(apply_rotary(x, rotary_factors(rope, sequence, x.options())), want, 1e-6, 1e-6));
}

TEST(Rope, TheRestOfAHeadIsNotRotated) {
  torch::manual_seed(0);
  const auto x = torch::randn({2, 3, 5, 10}, torch::kFloat64);
  for (const RopePairs pairs : {RopePairs::kHalves, RopePairs::kNeighbours}) {
    const auto factors = rotary_factors(plain_config(4, pairs), 5, x.options());
    const auto y = apply_rotary(x, factors);
    EXPECT_TRUE(torch::equal(y.narrow(-1, 0, 4), apply_rotary(x.narrow(-1, 0, 4), factors)));
    EXPECT_FALSE(torch::equal(y.narrow(-1, 0, 4), x.narrow(-1, 0, 4)));
    EXPECT_TRUE(torch::equal(y.narrow(-1, 4, 6), x.narrow(-1, 4, 6)));
  }
}

TEST(Rope, KeptFp32RoundsOnce) {
  torch::manual_seed(0);
  const auto x = torch::randn({2, 3, 40, 8}).to(torch::kBFloat16), wide = x.to(torch::kFloat32);
  RopeConfig rope = plain_config(8);
  const auto rounded = apply_rotary(x, rotary_factors(rope, 40, x.options()));
  const auto want = apply_rotary(wide, rotary_factors(rope, 40, wide.options())).to(torch::kBFloat16);
  rope.keeps_fp32 = true;
  const RotaryFactors factors = rotary_factors(rope, 40, x.options());
  EXPECT_EQ(factors.cos.scalar_type(), torch::kFloat32);
  EXPECT_EQ(factors.sin.scalar_type(), torch::kFloat32);
  const auto kept = apply_rotary(x, factors);
  EXPECT_EQ(kept.scalar_type(), torch::kBFloat16);
  EXPECT_TRUE(torch::equal(kept, want));
  EXPECT_FALSE(torch::equal(rounded, want));
}

}  // namespace
}  // namespace fsdp::models::rope_test
