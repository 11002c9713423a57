#include "schedule/unit_cut.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>

namespace fsdp::schedule::unit_cut_test {
namespace {

using ::testing::ElementsAre;

std::vector<CutItem> items_of(const std::vector<int64_t>& sizes) {
  std::vector<CutItem> items;
  for (int64_t size : sizes) {
    items.push_back({.nbytes = size, .gathered_nbytes = size, .gradient_nbytes = size, .adopts = true});
  }
  return items;
}

int64_t size_of(const std::vector<CutItem>& items, const std::vector<size_t>& unit) {
  int64_t sum = 0;
  for (size_t i : unit) sum += items[i].nbytes;
  return sum;
}

int64_t largest(const std::vector<CutItem>& items, const UnitCut& cut) {
  int64_t most = 0;
  for (const auto& unit : cut.units) most = std::max(most, size_of(items, unit));
  return most;
}

std::vector<size_t> flattened(const UnitCut& cut) {
  std::vector<size_t> all;
  for (const auto& unit : cut.units) all.insert(all.end(), unit.begin(), unit.end());
  return all;
}

TEST(UnitCut, MakesUnitsOfAboutTheTarget) {
  EXPECT_THAT(cut_into_units(items_of({5, 5, 5, 5, 5, 5}), {.target_nbytes = 10}).units,
              ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3), ElementsAre(4, 5)));
  // Two units are needed; 6 + 6 is better balanced than 9 + 3.
  EXPECT_THAT(cut_into_units(items_of({3, 3, 3, 3}), {.target_nbytes = 10}).units,
              ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3)));
  EXPECT_THAT(cut_into_units(items_of({2, 50, 2, 2}), {.target_nbytes = 10}).units,
              ElementsAre(ElementsAre(0), ElementsAre(1), ElementsAre(2, 3)));
}

TEST(UnitCut, TheDefaultTargetIsA32ndAndHasAnEnd) {
  EXPECT_EQ(cut_into_units(items_of(std::vector<int64_t>(128, 10)), {.max_target_nbytes = 1000}).units.size(), 32);
  EXPECT_EQ(cut_into_units(items_of(std::vector<int64_t>(128, 10)), {.max_target_nbytes = 20}).units.size(), 64);
}

TEST(UnitCut, NothingIsLostWithoutSizes) {
  EXPECT_THAT(flattened(cut_into_units(items_of({0, 0, 0}), {.target_nbytes = 1, .bound_nbytes = 0})),
              ElementsAre(0, 1, 2));
  EXPECT_TRUE(cut_into_units({}, {.target_nbytes = 1}).units.empty());
}

TEST(UnitCut, ParametersOfOthersInBetweenEndAUnit) {
  auto items = items_of({1, 1, 1, 1});
  items[2].joins = false;
  EXPECT_THAT(cut_into_units(items, {.target_nbytes = 10}).units, ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3)));
}

// The cut has as many units as greedy filling needs, which is the least, and of all such cuts the smallest largest
// unit.
TEST(UnitCut, IsTheBestOfAllCuts) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    std::vector<int64_t> sizes(1 + random() % 9);
    for (int64_t& size : sizes) size = 1 + random() % 20;
    int64_t target = 1 + random() % 40;
    auto items = items_of(sizes);
    UnitCut cut = cut_into_units(items, {.target_nbytes = target});
    std::vector<size_t> all(sizes.size());
    std::iota(all.begin(), all.end(), 0);
    EXPECT_EQ(flattened(cut), all);
    size_t fewest = sizes.size();
    std::vector<int64_t> best(sizes.size() + 1, std::numeric_limits<int64_t>::max());
    for (uint32_t cuts = 0; cuts < 1u << (sizes.size() - 1); ++cuts) {
      std::vector<int64_t> sums = {0};
      std::vector<int64_t> counts = {0};
      for (size_t i = 0; i < sizes.size(); ++i) {
        if (i > 0 && (cuts >> (i - 1) & 1)) {
          sums.push_back(0);
          counts.push_back(0);
        }
        sums.back() += sizes[i];
        ++counts.back();
      }
      bool allowed = true;
      for (size_t i = 0; i < sums.size(); ++i) allowed &= sums[i] <= target || counts[i] == 1;
      int64_t most = *std::max_element(sums.begin(), sums.end());
      if (allowed) fewest = std::min(fewest, sums.size());
      if (allowed) best[sums.size()] = std::min(best[sums.size()], most);
    }
    EXPECT_EQ(cut.units.size(), fewest);
    EXPECT_EQ(largest(items, cut), best[fewest]);
  }
}

TEST(UnitCut, CountsTheMemoryHeldAtATime) {
  auto items = items_of({4, 1, 3, 5});
  items[1].gradient_nbytes = 0;
  CutRules rules{.target_nbytes = 1};
  EXPECT_EQ(cut_into_units(items, rules).needed_nbytes, (3 + 5) + (3 + 5));
  rules.gradients_at_a_time = 3;
  EXPECT_EQ(cut_into_units(items, rules).needed_nbytes, (3 + 5) + (0 + 3 + 5));
  rules.gathered_at_a_time = std::numeric_limits<size_t>::max();
  EXPECT_EQ(cut_into_units(items, rules).needed_nbytes, (4 + 1 + 3 + 5) + (0 + 3 + 5));
  items[3].adopts = false;  // its gradient is copied
  rules.gradients_at_a_time = 2;
  EXPECT_EQ(cut_into_units(items, rules).needed_nbytes, (4 + 1 + 3 + 5) + (5 + 5));
  items[3].adopts = true;
  rules = {.target_nbytes = 1, .reshards = false};
  EXPECT_EQ(cut_into_units(items, rules).needed_nbytes, (4 + 1 + 3 + 5) + (3 + 5));
}

TEST(UnitCut, UnitsAreMadeSmallerUntilTheyFitTheBound) {
  auto items = items_of(std::vector<int64_t>(64, 10));
  for (int64_t bound : {2560, 1000, 400, 100, 40}) {
    UnitCut cut = cut_into_units(items, {.target_nbytes = 640, .bound_nbytes = bound});
    EXPECT_TRUE(cut.fits);
    EXPECT_LE(cut.needed_nbytes, bound);
    EXPECT_GE(cut.needed_nbytes, bound / 2) << "much smaller than needed";
  }
  UnitCut cut = cut_into_units(items, {.target_nbytes = 640, .bound_nbytes = 39});
  EXPECT_FALSE(cut.fits);
  EXPECT_EQ(cut.needed_nbytes, 40);
}

TEST(UnitCut, AReturningItemIsTheRootIfThatIsCheap) {
  auto items = items_of({40, 10, 10, 10, 10});
  items[0].returns = true;
  UnitCut cut = cut_into_units(items, {.target_nbytes = 10});
  EXPECT_TRUE(cut.has_root);
  EXPECT_THAT(cut.units, ElementsAre(ElementsAre(0), ElementsAre(1), ElementsAre(2), ElementsAre(3), ElementsAre(4)));
  EXPECT_EQ(cut.needed_nbytes, 2 * (40 + 20));
  // With larger units a root would take 3/2 as much.
  auto large = items_of({40, 40, 40, 40});
  large[0].returns = true;
  EXPECT_FALSE(cut_into_units(large, {.target_nbytes = 40}).has_root);
  EXPECT_TRUE(cut_into_units(large, {.target_nbytes = 40, .bound_nbytes = 240}).has_root);
  EXPECT_FALSE(cut_into_units(large, {.target_nbytes = 40, .bound_nbytes = 239}).has_root);
}

}  // namespace
}  // namespace fsdp::schedule::unit_cut_test
