#include "flat/flat_layout.h"

#include <gtest/gtest.h>

#include <random>

namespace fsdp::flat::flat_layout_test {
namespace {

// FSDP paper, figure 3: a 4x3 linear layer (12 weights, 3 biases) on 16 ranks. Each rank has one element; the last rank
// has the padding.
TEST(FlatLayout, PaperFigure3) {
  FlatLayout layout({12, 3}, 16);
  EXPECT_EQ(layout.shard_numel(), 1);
  EXPECT_EQ(layout.padding(), 1);
  EXPECT_EQ(layout.padded_numel(), 16);
  for (int64_t rank = 0; rank < 16; ++rank) {
    ParameterSlice weight = rank < 12 ? ParameterSlice{rank, rank + 1, 0} : ParameterSlice{};
    ParameterSlice bias = rank >= 12 && rank < 15 ? ParameterSlice{rank - 12, rank - 11, 0} : ParameterSlice{};
    EXPECT_EQ(layout.slice(0, rank), weight) << rank;
    EXPECT_EQ(layout.slice(1, rank), bias) << rank;
    EXPECT_EQ(layout.owned_numel(rank), rank < 15 ? 1 : 0);
  }
}

// FSDP paper, figure 4: the same layer on 16 ranks with sharding factor 8. Each rank has two elements, ranks r and r +
// 8 hold the same ones, and the last shard ends with the padding.
TEST(FlatLayout, PaperFigure4) {
  FlatLayout layout({12, 3}, 8);
  EXPECT_EQ(layout.shard_numel(), 2);
  EXPECT_EQ(layout.padding(), 1);
  for (int64_t rank = 0; rank < 16; ++rank) {
    int64_t position = rank % 8;
    ParameterSlice weight = position < 6 ? ParameterSlice{2 * position, 2 * position + 2, 0} : ParameterSlice{};
    EXPECT_EQ(layout.slice(0, position), weight);
  }
  EXPECT_EQ(layout.slice(1, 6), (ParameterSlice{0, 2, 0}));
  EXPECT_EQ(layout.slice(1, 7), (ParameterSlice{2, 3, 0}));
  EXPECT_EQ(layout.owned_numel(7), 1);
}

TEST(FlatLayout, AShardMayCutSeveralParameters) {
  FlatLayout layout({5, 0, 2, 7}, 3);  // 14 elements, shards of 5
  EXPECT_EQ(layout.padding(), 1);
  EXPECT_EQ(layout.slice(0, 0), (ParameterSlice{0, 5, 0}));
  EXPECT_EQ(layout.slice(2, 1), (ParameterSlice{0, 2, 0}));
  EXPECT_EQ(layout.slice(3, 1), (ParameterSlice{0, 3, 2}));
  EXPECT_EQ(layout.slice(3, 2), (ParameterSlice{3, 7, 0}));
  EXPECT_EQ(layout.slice(1, 1), ParameterSlice{});
}

TEST(FlatLayout, NothingToShard) {
  FlatLayout layout({0, 0}, 4);
  EXPECT_EQ(layout.padded_numel(), 0);
  EXPECT_EQ(layout.shard_numel(), 0);
  EXPECT_EQ(layout.slice(1, 3), ParameterSlice{});
}

// Every element lies in exactly one shard, at the position that it has in the concatenated shards; padding is minimal.
TEST(FlatLayout, ShardsPartitionTheFlatParameter) {
  std::mt19937 random(5);
  for (int round = 0; round < 300; ++round) {
    std::vector<int64_t> numels(random() % 6 + 1);
    for (int64_t& numel : numels) numel = random() % 23;
    int64_t factor = random() % 17 + 1;
    FlatLayout layout(numels, factor);
    ASSERT_LT(layout.padding(), factor);
    ASSERT_EQ(layout.padded_numel() % factor, 0);
    for (int64_t p = 0; p < layout.num_parameters(); ++p) {
      int64_t next = 0;
      for (int64_t rank = 0; rank < factor; ++rank) {
        ParameterSlice part = layout.slice(p, rank);
        if (part.numel() == 0) continue;
        ASSERT_EQ(part.begin, next);
        ASSERT_EQ(rank * layout.shard_numel() + part.shard_offset, layout.offset(p) + part.begin);
        ASSERT_LE(part.shard_offset + part.numel(), layout.shard_numel());
        next = part.end;
      }
      ASSERT_EQ(next, layout.numel(p));
    }
  }
}

TEST(FlatLayout, RefusesFactorZero) { EXPECT_THROW(FlatLayout(std::vector<int64_t>{3}, 0), c10::Error); }

}  // namespace
}  // namespace fsdp::flat::flat_layout_test
