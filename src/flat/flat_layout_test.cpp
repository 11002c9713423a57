#include "flat/flat_layout.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <gtest/gtest.h>

#include <random>

namespace fsdp::flat::flat_layout_test {
namespace {

FlatLayout flat_layout(const std::vector<int64_t>& numels, int64_t factor) {
  std::vector<ParameterExtent> parameters;
  for (int64_t numel : numels) parameters.push_back({.numel = numel});
  return {parameters, factor, ShardCut::kFlat};
}

// FSDP paper, figure 3: a 4x3 linear layer (12 weights, 3 biases) on 16 ranks. Each rank has one element; the last rank
// has the padding.
TEST(FlatLayout, PaperFigure3) {
  FlatLayout layout = flat_layout({12, 3}, 16);
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
  FlatLayout layout = flat_layout({12, 3}, 8);
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
  FlatLayout layout = flat_layout({5, 0, 2, 7}, 3);  // 14 elements, shards of 5
  EXPECT_EQ(layout.padding(), 1);
  EXPECT_EQ(layout.slice(0, 0), (ParameterSlice{0, 5, 0}));
  EXPECT_EQ(layout.slice(2, 1), (ParameterSlice{0, 2, 0}));
  EXPECT_EQ(layout.slice(3, 1), (ParameterSlice{0, 3, 2}));
  EXPECT_EQ(layout.slice(3, 2), (ParameterSlice{3, 7, 0}));
  EXPECT_EQ(layout.slice(1, 1), ParameterSlice{});
}

TEST(FlatLayout, NothingToShard) {
  FlatLayout layout = flat_layout({0, 0}, 4);
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
    FlatLayout layout = flat_layout(numels, factor);
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

// ---------------------------------------------------------------- the cut by rows

// Five rows of three over two ranks: three rows and two. Four elements: two each.
TEST(RowLayout, ShardsHaveThePlacesOfTheFirstOne) {
  FlatLayout layout({{15, 5}, {4, 4}}, 2, ShardCut::kRows);
  EXPECT_EQ(layout.slice(0, 0), (ParameterSlice{0, 9, 0}));
  EXPECT_EQ(layout.slice(0, 1), (ParameterSlice{9, 15, 0}));
  EXPECT_EQ(layout.slice(1, 0), (ParameterSlice{0, 2, 9}));
  EXPECT_EQ(layout.slice(1, 1), (ParameterSlice{2, 4, 9}));
  EXPECT_EQ(layout.shard_numel(), 11);
  EXPECT_EQ(layout.padding(), 3);
  EXPECT_EQ(layout.owned_numel(1), 8);
  EXPECT_EQ(layout.offset(1), 15);  // in a whole buffer
  EXPECT_FALSE(layout.is_in_rank_order());
}

TEST(RowLayout, LaterRanksMayHaveNothing) {
  FlatLayout layout({{5, 5}, {7, 1}, {0, 3}, {0, 0}}, 4, ShardCut::kRows);  // chunks of 2, 2, 1 and 0 elements
  EXPECT_EQ(layout.slice(0, 2), (ParameterSlice{4, 5, 0}));
  EXPECT_EQ(layout.slice(0, 3), ParameterSlice{});
  EXPECT_EQ(layout.slice(1, 0), (ParameterSlice{0, 7, 2}));
  EXPECT_EQ(layout.slice(1, 1), ParameterSlice{});
  EXPECT_EQ(layout.slice(2, 0), ParameterSlice{});
  EXPECT_EQ(layout.slice(3, 0), ParameterSlice{});
}

TEST(RowLayout, OneParameterWithoutPaddingIsInRankOrder) {
  EXPECT_TRUE(FlatLayout({{12, 4}}, 2, ShardCut::kRows).is_in_rank_order());
  EXPECT_FALSE(FlatLayout({{12, 3}}, 2, ShardCut::kRows).is_in_rank_order());
  EXPECT_TRUE(FlatLayout({{12, 3}, {5, 5}}, 1, ShardCut::kRows).is_in_rank_order());
  EXPECT_EQ(FlatLayout({{12, 3}, {5, 5}}, 1, ShardCut::kRows).cut(), ShardCut::kFlat);
}

// The same rows as torch.chunk, and no two parts overlap in a shard.
TEST(RowLayout, CutsAsTorchChunk) {
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    std::vector<ParameterExtent> parameters(random() % 5 + 1);
    for (ParameterExtent& parameter : parameters) {
      parameter.rows = static_cast<int64_t>(random() % 12 + 1);
      parameter.numel = parameter.rows * static_cast<int64_t>(random() % 4 + 1);
    }
    const int64_t factor = static_cast<int64_t>(random() % 7 + 2);
    FlatLayout layout(parameters, factor, ShardCut::kRows);
    for (int64_t rank = 0; rank < factor; ++rank) {
      int64_t used = 0;
      for (int64_t p = 0; p < layout.num_parameters(); ++p) {
        const std::vector<at::Tensor> chunks =
            at::arange(parameters[p].numel).view({parameters[p].rows, -1}).chunk(factor);
        const ParameterSlice part = layout.slice(p, rank);
        if (rank >= static_cast<int64_t>(chunks.size())) {
          ASSERT_EQ(part, ParameterSlice{});
          continue;
        }
        ASSERT_EQ(part.begin, chunks[rank].flatten()[0].item<int64_t>());
        ASSERT_EQ(part.numel(), chunks[rank].numel());
        ASSERT_GE(part.shard_offset, used);
        used = part.shard_offset + part.numel();
      }
      ASSERT_LE(used, layout.shard_numel());
    }
  }
}

TEST(FlatLayout, RefusesFactorZero) { EXPECT_THROW(flat_layout({3}, 0), c10::Error); }

}  // namespace
}  // namespace fsdp::flat::flat_layout_test
