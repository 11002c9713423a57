// The front against all pairs of random points.
#include "planner/search/front.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

namespace fsdp::planner::front_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Few values, so that many are equal.
std::vector<FrontPoint> random_points(std::mt19937& random, size_t count) {
  std::uniform_int_distribution<int64_t> value(0, 12);
  std::vector<FrontPoint> points;
  for (size_t i = 0; i < count; ++i) {
    points.push_back({.speed = static_cast<double>(value(random)), .device = value(random), .host = value(random)});
  }
  return points;
}

bool dominates(const FrontPoint& a, const FrontPoint& b) {
  const bool no_worse = a.speed >= b.speed && a.device <= b.device && a.host <= b.host;
  return no_worse && (a.speed > b.speed || a.device < b.device || a.host < b.host);
}

bool equal(const FrontPoint& a, const FrontPoint& b) {
  return a.speed == b.speed && a.device == b.device && a.host == b.host;
}

// A point that no other dominates, and to which none before it is equal.
std::set<size_t> front_by_pairs(const std::vector<FrontPoint>& points) {
  std::set<size_t> front;
  for (size_t i = 0; i < points.size(); ++i) {
    bool is_on_front = true;
    for (size_t j = 0; j < points.size(); ++j) {
      if (dominates(points[j], points[i]) || (j < i && equal(points[j], points[i]))) is_on_front = false;
    }
    if (is_on_front) front.insert(i);
  }
  return front;
}

TEST(ParetoFront, EqualsThatOfAllPairs) {
  std::mt19937 random(5);
  for (size_t round = 0; round < 500; ++round) {
    const std::vector<FrontPoint> points = random_points(random, round % 40);
    const std::vector<size_t> front = pareto_front(points, {});
    EXPECT_EQ(std::set<size_t>(front.begin(), front.end()), front_by_pairs(points));
    EXPECT_TRUE(std::is_sorted(front.begin(), front.end(),
                               [&](size_t a, size_t b) { return points[a].speed > points[b].speed; }));
  }
}

TEST(ParetoFront, LittleMemoryIsNotWorthARow) {
  const std::vector<FrontPoint> points = {{.speed = 5, .device = 100, .host = 10},
                                          {.speed = 9, .device = 104, .host = 11},
                                          {.speed = 4, .device = 90, .host = 10}};
  EXPECT_THAT(pareto_front(points, {.device = 4, .host = 1}), ElementsAre(1, 2));
  EXPECT_THAT(pareto_front(points, {.device = 3, .host = 1}), ElementsAre(1, 0, 2));
  EXPECT_THAT(pareto_front({}, {}), IsEmpty());
}

TEST(ParetoFront, ATinyGainInSpeedIsNotWorthMemory) {
  const std::vector<FrontPoint> points = {{.speed = 1000.3, .device = 69}, {.speed = 1000.1, .device = 62}};
  EXPECT_THAT(pareto_front(points, {.speed = 0.001}), ElementsAre(1));
  EXPECT_THAT(pareto_front(points, {}), ElementsAre(0, 1));
}

TEST(ParetoFront, OfAboutEqualPointsTheOneWithFewestChangesStays) {
  const std::vector<FrontPoint> points = {{.speed = 5, .device = 101, .host = 10, .changes = 3},
                                          {.speed = 5, .device = 104, .host = 11, .changes = 1},
                                          {.speed = 5, .device = 103, .host = 10, .changes = 2}};
  EXPECT_THAT(pareto_front(points, {.device = 10, .host = 10}), ElementsAre(1));
  EXPECT_THAT(pareto_front(points, {}), ElementsAre(0));
}

TEST(ParetoFront, WithToleranceSomeRowStandsForEachPoint) {
  std::mt19937 random(6);
  const FrontTolerance tolerance{.device = 2, .host = 1};
  for (size_t round = 0; round < 200; ++round) {
    const std::vector<FrontPoint> points = random_points(random, 30);
    std::vector<FrontPoint> front;
    for (const size_t index : pareto_front(points, tolerance)) {
      EXPECT_FALSE(is_beaten(points[index], front, tolerance));
      front.push_back(points[index]);
    }
    for (const FrontPoint& point : points) EXPECT_TRUE(is_beaten(point, front, tolerance));
  }
}

}  // namespace
}  // namespace fsdp::planner::front_test
