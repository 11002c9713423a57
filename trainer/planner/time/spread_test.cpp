#include "planner/time/spread.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

namespace fsdp::planner::spread_test {
namespace {

// Known in closed form: 1 / sqrt(pi) for two values, 1.5 / sqrt(pi) for three.
TEST(MeanLargestNormal, OfFewValues) {
  EXPECT_EQ(mean_largest_normal(1), 0);
  EXPECT_NEAR(mean_largest_normal(2), 1 / std::sqrt(std::numbers::pi), 1e-9);
  EXPECT_NEAR(mean_largest_normal(3), 1.5 / std::sqrt(std::numbers::pi), 1e-9);
}

// H. L. Harter, "Expected values of normal order statistics", 1961.
TEST(MeanLargestNormal, OfManyValues) {
  EXPECT_NEAR(mean_largest_normal(8), 1.42360, 5e-6);
  EXPECT_NEAR(mean_largest_normal(100), 2.50759, 5e-6);
  EXPECT_NEAR(mean_largest_normal(400), 2.96818, 5e-6);
}

TEST(MeanLargestNormal, GrowsWithTheirNumber) {
  double before = 0;
  for (int64_t count = 2; count <= int64_t{1} << 26; count *= 4) {
    const double mean = mean_largest_normal(count);
    EXPECT_GT(mean, before);
    before = mean;
  }
  EXPECT_LT(before, 6);
}

}  // namespace
}  // namespace fsdp::planner::spread_test
