// Compares sums in rank order with ATen arithmetic in the same order, for all dtypes, lengths around the block size,
// and values that are hard to round.
#include "comm/reduce_kernels.h"

#include <limits>

namespace fsdp::comm::reduce_kernels_test {
namespace {

using ::testing::Combine;
using ::testing::Values;

constexpr at::ScalarType kDtypes[] = {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf};

// Adds from left to right in the accumulator dtype, scales, and rounds once.
at::Tensor reference(const std::vector<at::Tensor>& parts, double scale, at::ScalarType output) {
  const auto accumulator = parts[0].scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  auto sum = parts[0].to(accumulator);
  for (size_t i = 1; i < parts.size(); ++i) sum = sum + parts[i].to(accumulator);
  return (sum * torch::tensor(scale, accumulator)).to(output);
}

std::vector<at::Tensor> random_parts(size_t count, int64_t numel, at::ScalarType dtype) {
  std::vector<at::Tensor> parts;
  for (size_t i = 0; i < count; ++i) {
    parts.push_back((torch::randn({numel}, at::kDouble) * std::pow(10.0, static_cast<double>(i % 3))).to(dtype));
  }
  return parts;
}

void expect_same_bits(const at::Tensor& actual, const at::Tensor& expected) {
  ASSERT_EQ(actual.scalar_type(), expected.scalar_type());
  EXPECT_TRUE(torch::equal(actual.isnan(), expected.isnan()));
  EXPECT_TRUE(torch::equal(actual.nan_to_num(0), expected.nan_to_num(0)));
}

class SumInOrder : public ::testing::TestWithParam<std::tuple<at::ScalarType, at::ScalarType>> {
 protected:
  at::ScalarType input() const { return std::get<0>(GetParam()); }
  at::ScalarType output() const { return std::get<1>(GetParam()); }
};

TEST_P(SumInOrder, MatchesSequentialArithmetic) {
  torch::manual_seed(3);
  for (const int64_t numel : {0, 1, 7, 1023, 1024, 1025, 5000}) {
    for (const size_t count : {1, 2, 3, 8}) {
      const auto parts = random_parts(count, numel, input());
      auto sum = torch::full({numel}, 99, output());
      sum_in_order(sum, parts, 1.0 / 3);
      expect_same_bits(sum, reference(parts, 1.0 / 3, output()));
    }
  }
}

// Infinities, NaN, subnormals, ties between two bf16 values, overflow of the narrow dtypes.
TEST_P(SumInOrder, HandlesSpecialValues) {
  const double inf = std::numeric_limits<double>::infinity();
  const auto values = torch::tensor({inf, -inf, inf, std::nan(""), 0.0, -0.0, 65504.0, 3.3e38, -3.3e38, 1e-40, 6e-8,
                                     1.00390625, 1.01171875, 1.0039063692092896, 256.0},
                                    at::kDouble)
                          .to(input());
  const auto others =
      torch::tensor({1.0, 2.0, -inf, 1.0, 0.0, -0.0, 65504.0, 3.3e38, -3.3e38, 1e-40, 6e-8, 0.0, 0.0, 0.0, 1.0},
                    at::kDouble)
          .to(input());
  auto sum = torch::zeros({values.numel()}, output());
  sum_in_order(sum, {values, others}, 1.0);
  expect_same_bits(sum, reference({values, others}, 1.0, output()));
}

TEST_P(SumInOrder, MayWriteIntoAPart) {
  if (input() != output()) return;
  for (const size_t own : {0, 1, 2}) {
    auto parts = random_parts(3, 3000, input());
    const auto expected = reference(parts, 2.0, output());
    sum_in_order(parts[own], parts, 2.0);
    expect_same_bits(parts[own], expected);
  }
}

// Slices of flat buffers may begin at any element.
TEST_P(SumInOrder, TakesUnalignedSlices) {
  const auto whole = random_parts(2, 4001, input());
  auto output_buffer = torch::zeros({4001}, output());
  auto sum = output_buffer.narrow(0, 3, 3997);
  const std::vector<at::Tensor> parts = {whole[0].narrow(0, 1, 3997), whole[1].narrow(0, 4, 3997)};
  sum_in_order(sum, parts, 0.5);
  expect_same_bits(sum, reference(parts, 0.5, output()));
  EXPECT_EQ(output_buffer[2].item<double>(), 0);
  EXPECT_EQ(output_buffer[4000].item<double>(), 0);
}

TEST_P(SumInOrder, SummarizesItsResult) {
  for (const int64_t numel : {0, 1, 15, 16, 17, 1023, 1024, 1025, 5000}) {
    const auto parts = random_parts(2, numel, input());
    auto sum = torch::zeros({numel}, output());
    ReductionSummary summary;
    sum_in_order(sum, parts, 1.0 / 3, &summary);
    EXPECT_TRUE(summary.known && summary.finite);
    const double squares = sum.to(at::kDouble).square().sum().item<double>();
    EXPECT_NEAR(summary.squared_norm, squares, 2e-6 * squares);
    EXPECT_EQ(summary_of(sum).squared_norm, summary.squared_norm);
  }
}

TEST_P(SumInOrder, SeesEveryElementThatIsNotFinite) {
  const double inf = std::numeric_limits<double>::infinity();
  for (const double bad : {inf, -inf, std::nan("")}) {
    for (const int64_t place : {0, 15, 16, 1023, 1024, 2999}) {
      auto values = torch::ones({3000}, input());
      values[place] = bad;
      auto sum = torch::zeros({3000}, output());
      ReductionSummary summary;
      sum_in_order(sum, {values}, 1.0, &summary);
      EXPECT_FALSE(summary.finite) << bad << " at " << place;
      EXPECT_FALSE(std::isfinite(summary.squared_norm));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, SumInOrder, Combine(::testing::ValuesIn(kDtypes), ::testing::ValuesIn(kDtypes)));

// The squares of these values are not representable in fp32.
TEST(ReductionSummaries, OfLargeAndSmallValues) {
  for (const double value : {1e30, 3e38, 1e-30, 1e-38}) {
    const ReductionSummary summary = summary_of(torch::full({2000}, value, at::kFloat));
    EXPECT_TRUE(summary.finite);
    EXPECT_NEAR(summary.squared_norm / (2000 * value * value), 1, 1e-6) << value;
  }
  const ReductionSummary doubles = summary_of(torch::full({2000}, 1e200, at::kDouble));
  EXPECT_TRUE(doubles.finite);
  EXPECT_FALSE(std::isfinite(doubles.squared_norm));
}

TEST(ReductionSummaries, AddUpInOrder) {
  const auto whole = torch::randn({3000});
  const ReductionSummary both = merged({summary_of(whole.narrow(0, 0, 2048)), summary_of(whole.narrow(0, 2048, 952))});
  EXPECT_TRUE(both.known && both.finite);
  EXPECT_EQ(both.squared_norm, summary_of(whole).squared_norm) << "parts of whole blocks add up to the same bits";
  EXPECT_FALSE(merged({summary_of(whole), summary_of(torch::full({1}, std::nan("")))}).finite);
  EXPECT_FALSE(merged({summary_of(whole), ReductionSummary{}}).known);
}

TEST(ReductionSummaries, OfIntegersAreNotKnown) { EXPECT_FALSE(summary_of(torch::ones({3}, at::kLong)).known); }

TEST(SumInOrderOfIntegers, IsExactAndUnscaled) {
  auto sum = torch::zeros({2}, at::kLong);
  const std::vector<at::Tensor> parts = {torch::tensor({int64_t{1} << 62, int64_t{5}}),
                                         torch::tensor({int64_t{1}, int64_t{-7}})};
  sum_in_order(sum, parts, 1.0);
  EXPECT_TRUE(torch::equal(sum, torch::tensor({(int64_t{1} << 62) + 1, int64_t{-2}})));
  EXPECT_THROW(sum_in_order(sum, parts, 0.5), c10::Error);
}

TEST(SumInOrderErrors, NameTheDifference) {
  auto sum = torch::zeros({2});
  EXPECT_THROW(sum_in_order(sum, {}, 1.0), c10::Error);
  EXPECT_THROW(sum_in_order(sum, {torch::ones({3})}, 1.0), c10::Error);
  EXPECT_THROW(sum_in_order(sum, {torch::ones({2}), torch::ones({2}, at::kHalf)}, 1.0), c10::Error);
}

}  // namespace
}  // namespace fsdp::comm::reduce_kernels_test
