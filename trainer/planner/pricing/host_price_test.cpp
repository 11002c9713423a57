// Prices of operators and collectives on CPUs that can be worked out by hand, and a step that is the sum of them.
#include "planner/pricing/host_price.h"

#include <gtest/gtest.h>

#include <cmath>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "planner/pricing/time_forecast.h"

namespace fsdp::planner::host_price_test {
namespace {

using comm::CollectiveKind;

constexpr double kTolerance = 1e-12;

TEST(TimesByBytes, AreAPowerBetweenPoints) {
  const TimeCurve curve = {{1000, 1e-3}, {100'000, 1e-2}};
  EXPECT_NEAR(seconds_at(curve, 10), 1e-3, kTolerance);
  EXPECT_NEAR(seconds_at(curve, 1000), 1e-3, kTolerance);
  EXPECT_NEAR(seconds_at(curve, 10'000), std::sqrt(1e-5), kTolerance);
  EXPECT_NEAR(seconds_at(curve, 300'000), 3e-2, kTolerance);
}

TEST(TimesByBytes, OfCallsWithoutBytes) {
  const TimeCurve curve = {{0, 1e-6}, {1000, 1e-3}};
  EXPECT_NEAR(seconds_at(curve, 0), 1e-6, kTolerance);
  EXPECT_NEAR(seconds_at(curve, 1), 1e-3, kTolerance);
  EXPECT_NEAR(seconds_at({{0, 1e-6}}, 4096), 4096e-6, kTolerance);
}

ProductWork product(int64_t m, int64_t n, int64_t k, ProductType type = ProductType::kMatrices) {
  return {.type = type, .m = m, .n = n, .k = k, .flops = 2.0 * static_cast<double>(m * n * k)};
}

// The measured products are so far apart that the others hardly count.
TEST(Products, TakeTheRateOfTheNearest) {
  const HostSpeed speed{.products = {{product(64, 64, 64), 64e-6},
                                     {product(1 << 20, 64, 64), 1},
                                     {product(64, 1 << 20, 1 << 20), 1},
                                     {product(64, 64, 64, ProductType::kConvolution), 9}}};
  const double rate = 2.0 * 64 * 64 * 64 / 64e-6;
  EXPECT_NEAR(seconds_of(product(64, 64, 64), speed) / (2.0 * 64 * 64 * 64 / rate), 1, 0.1);
  EXPECT_NEAR(seconds_of(product(64, 66, 64), speed) / (2.0 * 64 * 66 * 64 / rate), 1, 0.2);
}

TEST(Products, AreOfTheirTypeAndDtype) {
  ProductWork half = product(8, 8, 8);
  half.dtype = at::kBFloat16;
  const HostSpeed speed{.products = {{product(8, 8, 8), 1e-3}, {half, 5e-3}}};
  EXPECT_NEAR(seconds_of(product(8, 8, 8), speed), 1e-3, kTolerance);
  EXPECT_NEAR(seconds_of(half, speed), 5e-3, kTolerance);
  EXPECT_THROW(seconds_of(product(8, 8, 8, ProductType::kAttention), speed), std::invalid_argument);
}

HostSpeed speed_of_two_ranks() {
  return {.operators = {{"aten::add", at::kFloat, {{100, 1e-3}}},
                        {"aten::add", at::kBFloat16, {{100, 8e-3}}},
                        {kOtherOperators, at::kFloat, {{100, 2e-3}}}},
          .products = {{product(8, 8, 8), 4e-3}},
          .exchanges = {{CollectiveKind::kAllGather, HostPath::kMemory, 2, {{400, 7e-3}}},
                        {CollectiveKind::kAllGather, HostPath::kInPlace, 2, {{400, 5e-3}}},
                        {CollectiveKind::kReduceScatter, HostPath::kMemory, 2, {{400, 11e-3}}},
                        {CollectiveKind::kReduceScatter, HostPath::kMemory, 4, {{400, 30e-3}}}}};
}

TEST(Operators, HaveACurveForTheDtypeOfTheModel) {
  const HostSpeed speed = speed_of_two_ranks();
  EXPECT_NEAR(seconds_of("aten::add", 100, at::kFloat, speed), 1e-3, kTolerance);
  EXPECT_NEAR(seconds_of("aten::add", 100, at::kBFloat16, speed), 8e-3, kTolerance);
  EXPECT_NEAR(seconds_of("aten::mul", 100, at::kFloat, speed), 2e-3, kTolerance);
  EXPECT_THROW(seconds_of("aten::mul", 100, at::kBFloat16, speed), std::invalid_argument);
  EXPECT_TRUE(speed.knows(at::kBFloat16));
  EXPECT_FALSE(speed.knows(at::kHalf));
}

// A tape of one rank's kernels and collectives in a group.
class HostStep : public ::testing::Test {
 protected:
  void kernel(const std::string& name, int64_t work = -1) {
    names.push_back(name);
    entries.push_back({.kind = TapeKind::kKernel,
                       .place = Place::kHost,
                       .backward = true,
                       .name = static_cast<int32_t>(names.size()) - 1,
                       .id = work,
                       .bytes = 100});
  }
  Tape tape() const { return {entries, names, {product(8, 8, 8)}}; }

  Cluster cluster() const {
    Cluster cluster;
    cluster.ranks_per_host = 2;
    cluster.host_per_kernel = 1e-4;
    cluster.spread = 0;
    cluster.host_speed = speed_of_two_ranks();
    return cluster;
  }

  std::vector<TapeEntry> entries;
  std::vector<std::string> names;
};

TEST_F(HostStep, IsTheSumOfItsKernelsAndExchanges) {
  kernel("aten::add");
  kernel("aten::mm", 0);
  kernel("aten::mul");
  Tape tape = this->tape();
  const int group = tape.add_group({0, 1});
  const auto exchange = [&](CollectiveKind kind, HostPath path) {
    const TapeCollective collective{.kind = kind, .numel = 100, .dtype = at::kFloat, .group = group, .path = path};
    tape.waited(tape.issued(collective, Place::kHost, -1), Place::kHost, -1);
  };
  exchange(CollectiveKind::kAllGather, HostPath::kInPlace);
  exchange(CollectiveKind::kReduceScatter, HostPath::kMemory);
  const TimeForecast forecast = forecast_time(tape, {0, tape.entries().size()}, cluster(), {});
  const StepTime& step = forecast.steps.back();
  EXPECT_NEAR(step.compute, (1 + 4 + 2) * 1e-3, kTolerance);
  EXPECT_NEAR(step.by_kind[static_cast<size_t>(WorkKind::kMatrixProducts)], 4e-3, kTolerance);
  EXPECT_NEAR(step.host_bound, 3e-4, kTolerance);
  EXPECT_NEAR(step.exposed, (5 + 11) * 1e-3, kTolerance);
  EXPECT_NEAR(step.seconds(), 23.3e-3, kTolerance);
  ASSERT_EQ(forecast.collectives.size(), 2);
  EXPECT_NEAR(forecast.collectives[0].seconds, 5e-3, kTolerance);
  EXPECT_EQ(forecast.collectives[0].sent, 200);
}

TEST_F(HostStep, GroupsTakeTheCurveOfTheNearestSize) {
  Tape tape = this->tape();
  const auto seconds = [&](std::vector<int> ranks, CollectiveKind kind) {
    const int group = tape.add_group(std::move(ranks));
    const TapeCollective collective{
        .kind = kind, .numel = 100, .dtype = at::kFloat, .group = group, .path = HostPath::kMemory};
    return exchange_seconds(tape, static_cast<size_t>(tape.issued(collective, Place::kHost, -1)), speed_of_two_ranks());
  };
  EXPECT_EQ(seconds({0}, CollectiveKind::kAllReduce), 0);
  EXPECT_NEAR(seconds({0, 1}, CollectiveKind::kReduceScatter), 11e-3, kTolerance);
  EXPECT_NEAR(seconds({0, 1, 2, 3, 4}, CollectiveKind::kReduceScatter), 40e-3, kTolerance);  // of 4 ranks, 4 / 3 times
  EXPECT_NEAR(seconds({0, 1}, CollectiveKind::kAllToAll), 7e-3, kTolerance);
  EXPECT_THROW(seconds({0, 1}, CollectiveKind::kAllReduce), std::invalid_argument);
}

}  // namespace
}  // namespace fsdp::planner::host_price_test
