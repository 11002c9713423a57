// Tests of Arena: blocks of one piece of memory.
#include "engine/arena.h"

namespace fsdp::engine::arena_test {
namespace {

constexpr int64_t kUnit = schedule::BlockPlaces::kGranularity;

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
  EXPECT_FALSE(arena.release(at::empty({kUnit}, at::kByte))) << "somebody else's";
  EXPECT_ANY_THROW(arena.resize(kUnit));
  for (const at::Tensor& block : {b, a, c}) EXPECT_TRUE(arena.release(block));
  EXPECT_ANY_THROW(arena.release(a));
  EXPECT_TRUE(arena.empty());
  arena.resize(0);
  EXPECT_EQ(arena.capacity(), 0);
}

}  // namespace
}  // namespace fsdp::engine::arena_test
