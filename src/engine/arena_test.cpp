// Where blocks lie.
#include "engine/arena.h"

#include <map>
#include <random>

namespace fsdp::arena_test {
namespace {

constexpr int64_t kUnit = Arena::kGranularity;

TEST(Arena, HasNothingAtFirst) {
  Arena arena(c10::kCPU);
  EXPECT_EQ(arena.capacity(), 0);
  EXPECT_FALSE(arena.take(1));
}

TEST(Arena, BlocksDoNotOverlapAndReturn) {
  Arena arena(c10::kCPU);
  arena.resize(4 * kUnit);
  at::Tensor a = *arena.take(kUnit), b = *arena.take(3), c = *arena.take(2 * kUnit);
  EXPECT_EQ(b.numel(), 3);
  a.fill_(1), b.fill_(2), c.fill_(3);
  EXPECT_TRUE(a.eq(1).all().item<bool>() && b.eq(2).all().item<bool>() && c.eq(3).all().item<bool>());
  EXPECT_FALSE(arena.take(1)) << "full";
  EXPECT_FALSE(arena.give_back(at::empty({kUnit}, at::kByte))) << "somebody else's";
  EXPECT_ANY_THROW(arena.resize(kUnit));
  for (const at::Tensor& block : {b, a, c}) EXPECT_TRUE(arena.give_back(block));
  EXPECT_ANY_THROW(arena.give_back(a));
  EXPECT_TRUE(arena.empty());
  arena.resize(0);
  EXPECT_EQ(arena.capacity(), 0);
}

// [Note: two ends]
TEST(Arena, HoldsAnyTwoBlocksWhoseSumFits) {
  std::mt19937 random(7);
  std::uniform_int_distribution<int64_t> size(1, 40);
  for (int round = 0; round < 200; ++round) {
    std::vector<int64_t> sizes(30);
    for (int64_t& s : sizes) s = size(random) * kUnit;
    int64_t capacity = 0;
    for (size_t i = 0; i + 1 < sizes.size(); ++i) capacity = std::max(capacity, sizes[i] + sizes[i + 1]);
    Arena arena(c10::kCPU);
    arena.resize(capacity);
    std::optional<at::Tensor> latest = arena.take(sizes[0]);
    for (size_t i = 1; i < sizes.size(); ++i) {
      std::optional<at::Tensor> next = arena.take(sizes[i]);
      ASSERT_TRUE(next) << "round " << round << ", block " << i;
      arena.give_back(*latest);
      latest = next;
    }
  }
}

}  // namespace
}  // namespace fsdp::arena_test
