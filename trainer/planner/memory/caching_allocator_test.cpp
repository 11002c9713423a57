// The replica of the caching allocator, on sequences whose blocks and segments follow from LibTorch's rules by hand.
#include "planner/memory/caching_allocator.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace fsdp::planner::caching_allocator_test {
namespace {

constexpr int64_t kKiB = 1 << 10;
constexpr int64_t kMiB = 1 << 20;

TEST(CachingAllocator, SizesAreRoundedUpTo512Bytes) {
  CachingAllocator allocator;
  allocator.allocate(1, 0);
  EXPECT_EQ(allocator.allocated().current, 512);
  allocator.allocate(513, 0);
  EXPECT_EQ(allocator.allocated().current, 512 + 1024);
  EXPECT_EQ(allocator.reserved().current, 2 * kMiB);
}

TEST(CachingAllocator, SegmentsDependOnTheSizeOfTheRequest) {
  CachingAllocator small, middle, large;
  small.allocate(kMiB, 0);
  EXPECT_EQ(small.reserved().current, 2 * kMiB);
  middle.allocate(kMiB + 1, 0);
  EXPECT_EQ(middle.reserved().current, 20 * kMiB);
  middle.allocate(9 * kMiB, 0);
  EXPECT_EQ(middle.reserved().current, 20 * kMiB);
  large.allocate(11 * kMiB + 1, 0);
  EXPECT_EQ(large.reserved().current, 12 * kMiB);
}

// A rest of up to 1 MiB stays with its block, and counts as allocated.
TEST(CachingAllocator, ALargeBlockIsSplitIfOver1MiBIsLeft) {
  CachingAllocator allocator;
  allocator.allocate(11 * kMiB + 512 * kKiB, 0);
  EXPECT_EQ(allocator.allocated().current, 12 * kMiB);
  CachingAllocator other;
  other.allocate(18 * kMiB, 0);
  other.free(0);
  other.allocate(16 * kMiB, 0);
  EXPECT_EQ(other.allocated().current, 16 * kMiB);
  EXPECT_EQ(other.reserved().current, 18 * kMiB);
}

TEST(CachingAllocator, TheSmallestFreeBlockIsTaken) {
  CachingAllocator allocator;
  const uint64_t a = allocator.allocate(30 * kMiB, 0);
  const uint64_t b = allocator.allocate(14 * kMiB, 0);
  const uint64_t c = allocator.allocate(20 * kMiB, 0);
  for (const uint64_t address : {a, b, c}) allocator.free(address);
  EXPECT_EQ(allocator.allocate(13 * kMiB, 0), b);
  EXPECT_EQ(allocator.allocate(15 * kMiB, 0), c);
  EXPECT_EQ(allocator.reserved().current, 64 * kMiB);
}

TEST(CachingAllocator, FreeNeighboursOfOneSegmentMerge) {
  CachingAllocator allocator;
  const uint64_t a = allocator.allocate(6 * kMiB, 0);
  const uint64_t b = allocator.allocate(6 * kMiB, 0);
  const uint64_t c = allocator.allocate(6 * kMiB, 0);
  allocator.free(a);
  allocator.free(c);
  allocator.free(b);
  EXPECT_EQ(allocator.reserved().current, 20 * kMiB);
  EXPECT_EQ(allocator.allocate(20 * kMiB, 0), a);
  EXPECT_EQ(allocator.reserved().current, 20 * kMiB);
}

TEST(CachingAllocator, AStreamDoesNotGetTheBlocksOfAnotherOne) {
  CachingAllocator allocator;
  const uint64_t a = allocator.allocate(16 * kMiB, 0);
  allocator.free(a);
  EXPECT_NE(allocator.allocate(16 * kMiB, 1), a);
  EXPECT_EQ(allocator.reserved().current, 32 * kMiB);
}

TEST(CachingAllocator, AFullDeviceGivesBackFreeSegmentsOnce) {
  CachingAllocator allocator({.capacity = 40 * kMiB});
  const uint64_t a = allocator.allocate(16 * kMiB, 0);
  const uint64_t b = allocator.allocate(16 * kMiB, 0);
  allocator.free(a);
  allocator.allocate(20 * kMiB, 0);
  EXPECT_EQ(allocator.retries(), 1);
  EXPECT_EQ(allocator.reserved().current, 36 * kMiB);
  EXPECT_THROW(allocator.allocate(6 * kMiB, 0), DeviceMemoryExhausted);
  allocator.free(b);
  allocator.allocate(6 * kMiB, 0);
  EXPECT_EQ(allocator.reserved().current, 36 * kMiB);
}

// Fragmentation: enough is free, but no segment is free as a whole.
TEST(CachingAllocator, SegmentsInPartialUseAreNotGivenBack) {
  CachingAllocator allocator({.capacity = 40 * kMiB});
  const uint64_t a = allocator.allocate(8 * kMiB, 0);
  allocator.allocate(2 * kMiB, 0);
  allocator.free(a);
  const uint64_t b = allocator.allocate(20 * kMiB, 0);
  EXPECT_THROW(allocator.allocate(19 * kMiB, 0), DeviceMemoryExhausted);
  allocator.free(b);
  EXPECT_EQ(allocator.allocate(19 * kMiB, 0), b);
}

TEST(CachingAllocator, BlocksAboveTheLimitOfSplittingStayWhole) {
  CachingAllocator allocator({.max_split_size = 32 * kMiB});
  const uint64_t a = allocator.allocate(64 * kMiB, 0);
  allocator.free(a);
  EXPECT_NE(allocator.allocate(16 * kMiB, 0), a);
  EXPECT_EQ(allocator.allocate(50 * kMiB, 0), a);
  EXPECT_EQ(allocator.allocated().current, 80 * kMiB);
}

TEST(CachingAllocator, AnySequenceEndsWhereItBegan) {
  std::mt19937_64 random(7);
  CachingAllocator allocator;
  std::vector<std::pair<uint64_t, int64_t>> used;
  int64_t least = 0;
  for (int i = 0; i < 20'000; ++i) {
    if (used.empty() || random() % 2 == 0) {
      const auto nbytes = static_cast<int64_t>(1 + random() % (uint64_t{1} << (random() % 26)));
      const uint64_t address = allocator.allocate(nbytes, static_cast<int>(random() % 3));
      for (const auto& [other, size] : used) {
        ASSERT_TRUE(address + static_cast<uint64_t>(nbytes) <= other || other + static_cast<uint64_t>(size) <= address);
      }
      used.emplace_back(address, nbytes);
      least += nbytes;
    } else {
      std::swap(used[random() % used.size()], used.back());
      allocator.free(used.back().first);
      least -= used.back().second;
      used.pop_back();
    }
    ASSERT_GE(allocator.allocated().current, least);
    ASSERT_GE(allocator.reserved().current, allocator.allocated().current);
  }
  for (const auto& [address, nbytes] : used) allocator.free(address);
  EXPECT_EQ(allocator.allocated().current, 0);
}

}  // namespace
}  // namespace fsdp::planner::caching_allocator_test
