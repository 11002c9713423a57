// Tests of BlockPlaces: where blocks lie.
#include "schedule/block_places.h"

#include <gtest/gtest.h>

#include <random>

namespace fsdp::schedule::block_places_test {
namespace {

constexpr int64_t kUnit = BlockPlaces::kGranularity;

TEST(BlockPlaces, HasNoPlaceWithoutMemory) { EXPECT_FALSE(BlockPlaces().take(1)); }

TEST(BlockPlaces, BlocksDoNotOverlapAndReturn) {
  BlockPlaces places(4 * kUnit);
  EXPECT_EQ(places.take(kUnit), 0);
  EXPECT_EQ(places.take(3), 3 * kUnit) << "the other end, rounded up";
  EXPECT_EQ(places.take(2 * kUnit), kUnit);
  EXPECT_FALSE(places.take(1)) << "full";
  EXPECT_FALSE(places.release(1)) << "no block begins there";
  for (int64_t begin : {3 * kUnit, int64_t{0}, kUnit}) EXPECT_TRUE(places.release(begin));
  EXPECT_FALSE(places.release(0)) << "twice";
  EXPECT_TRUE(places.empty());
}

// [Note: two ends]
TEST(BlockPlaces, HoldAnyTwoBlocksWhoseSumFits) {
  std::mt19937 random(7);
  std::uniform_int_distribution<int64_t> size(1, 40);
  for (int round = 0; round < 200; ++round) {
    std::vector<int64_t> sizes(30);
    for (int64_t& s : sizes) s = size(random) * kUnit;
    int64_t capacity = 0;
    for (size_t i = 0; i + 1 < sizes.size(); ++i) capacity = std::max(capacity, sizes[i] + sizes[i + 1]);
    BlockPlaces places(capacity);
    std::optional<int64_t> latest = places.take(sizes[0]);
    for (size_t i = 1; i < sizes.size(); ++i) {
      std::optional<int64_t> next = places.take(sizes[i]);
      ASSERT_TRUE(next) << "round " << round << ", block " << i;
      places.release(*latest);
      latest = next;
    }
  }
}

}  // namespace
}  // namespace fsdp::schedule::block_places_test
