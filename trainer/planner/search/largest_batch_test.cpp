// The largest batch that fits is found for made-up memories, with few plans.
#include "planner/search/largest_batch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>

namespace fsdp::planner::largest_batch_test {
namespace {

using ::testing::ElementsAre;
using Memory = std::function<double(double)>;  // of a size

const std::vector<int64_t> kSizes = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512};

struct Found {
  std::optional<size_t> largest;
  std::vector<int64_t> planned;
};

Found find(const Memory& memory, const BatchMemory& known) {
  LargestBatch search(kSizes, known);
  Found found;
  while (const auto next = search.next()) {
    found.planned.push_back(kSizes.at(*next));
    EXPECT_LE(found.planned.size(), kSizes.size());
    const double bytes = memory(static_cast<double>(kSizes[*next]));
    search.tell(*next, bytes, bytes <= known.limit);
  }
  found.largest = search.largest();
  return found;
}

std::optional<size_t> largest_by_trying_all(const Memory& memory, double limit) {
  std::optional<size_t> largest;
  for (size_t i = 0; i < kSizes.size(); ++i) {
    if (memory(static_cast<double>(kSizes[i])) <= limit) largest = i;
  }
  return largest;
}

TEST(LargestBatch, AGoodGuessNeedsTwoPlans) {
  const Memory memory = [](double size) { return 100 + 10 * size; };
  const Found found = find(memory, {.limit = 190, .first = 5, .without_samples = 100});
  EXPECT_EQ(found.largest, 5);
  EXPECT_THAT(found.planned, ElementsAre(8, 12));
}

TEST(LargestBatch, AKnownSlopeSparesThePlanOfAHopelessSize) {
  const Memory memory = [](double size) { return 100 + 10 * size; };
  const Found found = find(memory, {.limit = 190, .first = 5, .without_samples = 100, .per_sample = 10});
  EXPECT_EQ(found.largest, 5);
  EXPECT_THAT(found.planned, ElementsAre(8));
}

TEST(LargestBatch, ABadGuessIsCorrectedAlongALine) {
  const Memory memory = [](double size) { return 100 + 10 * size; };
  const Found small = find(memory, {.limit = 1000, .first = 0, .without_samples = 60});
  EXPECT_EQ(small.largest, 11);
  EXPECT_LE(small.planned.size(), 4);
  const Found large = find(memory, {.limit = 1000, .first = 17, .without_samples = 60});
  EXPECT_EQ(large.largest, 11);
  EXPECT_LE(large.planned.size(), 4);
}

TEST(LargestBatch, NoneOrAllMayFit) {
  EXPECT_EQ(find([](double size) { return 100 * size; }, {.limit = 99, .first = 3}).largest, std::nullopt);
  EXPECT_EQ(find([](double size) { return size; }, {.limit = 512, .first = 3}).largest, 17);
}

// Memory that grows faster and faster, or is constant up to some batch: such as that of activations beside the peak of
// the optimizer.
TEST(LargestBatch, ConvexMemoryIsExact) {
  std::mt19937 random(3);
  const auto drawn = [&](double low, double high) { return std::uniform_real_distribution(low, high)(random); };
  for (int round = 0; round < 2000; ++round) {
    const double fixed = drawn(0, 100), floor = drawn(0, 200);
    const double slope = std::exp(drawn(-3, 5)), curve = round % 2 == 0 ? 0 : drawn(0, 1);
    const Memory memory = [=](double size) { return std::max(floor, fixed + slope * size + curve * size * size); };
    const BatchMemory known{.limit = drawn(1, 1000), .first = random() % kSizes.size(), .without_samples = fixed / 2};
    const Found found = find(memory, known);
    EXPECT_EQ(found.largest, largest_by_trying_all(memory, known.limit)) << round;
    EXPECT_LE(found.planned.size(), 9) << round;
  }
}

TEST(LargestBatch, AnyGrowingMemoryEndsWithASizeThatFits) {
  std::mt19937 random(4);
  for (int round = 0; round < 2000; ++round) {
    std::vector<double> bytes;
    for (size_t i = 0; i < kSizes.size(); ++i) bytes.push_back(std::uniform_real_distribution(0.0, 1000.0)(random));
    std::sort(bytes.begin(), bytes.end());
    const Memory memory = [&](double size) {
      return bytes[static_cast<size_t>(std::find(kSizes.begin(), kSizes.end(), size) - kSizes.begin())];
    };
    const double limit = 500;
    const Found found = find(memory, {.limit = limit, .first = random() % kSizes.size()});
    EXPECT_EQ(found.largest.has_value(), bytes.front() <= limit);
    EXPECT_LE(bytes[found.largest.value_or(0)], found.largest ? limit : 1000);
  }
}

}  // namespace
}  // namespace fsdp::planner::largest_batch_test
