// Tests of largest_window: the memory of units that follow one another.
#include "schedule/memory_bounds.h"

#include <gtest/gtest.h>

#include <limits>

#include "schedule/testing/made_up_units.h"

namespace fsdp::schedule::memory_bounds_test {
namespace {

// Returns the largest window over `visits`. Unit a has 1 byte, b has 2 bytes, …
int64_t window(const std::string& visits, size_t at_a_time, const std::string& staying = "") {
  testing::MadeUpUnits units;
  std::vector<ScheduledUnit*> order;
  for (char letter : visits) order.push_back(&units[letter]);
  for (char letter : staying) units[letter].set_stays_gathered(true);
  return largest_window(order, at_a_time, [](const ScheduledUnit& unit) {
    return static_cast<const testing::MadeUpUnit&>(unit).letter - 'a' + 1;
  });
}

TEST(LargestWindow, IsTheLargestSumOfNeighbours) {
  EXPECT_EQ(window("", 2), 0);
  EXPECT_EQ(window("abcd", 1), 4);
  EXPECT_EQ(window("abcd", 2), 7);
  EXPECT_EQ(window("dabc", 2), 5);
  EXPECT_EQ(window("dabc", 9), 10);
  EXPECT_EQ(window("dabc", std::numeric_limits<size_t>::max()), 10);
}

TEST(LargestWindow, CountsEachUnitOnce) {
  EXPECT_EQ(window("abab", 2), 3);
  EXPECT_EQ(window("acacb", 2), 5) << "c and b";
  EXPECT_EQ(window("ddd", 3), 4);
}

TEST(LargestWindow, PassesOverUnitsThatStayAfterBackward) {
  testing::MadeUpUnits units;
  const std::vector<ScheduledUnit*> order = {&units['a'], &units['b'], &units['c']};
  const auto one = [](const ScheduledUnit&) { return int64_t{1}; };
  EXPECT_EQ(largest_window(order, 3, one), 3);
  units['b'].set_stays_after_backward(true);
  EXPECT_EQ(largest_window(order, 3, one), 2);
}

TEST(LargestWindow, PassesOverUnitsThatStay) {
  EXPECT_EQ(window("azbzc", 2, "z"), 5);
  EXPECT_EQ(window("zzz", 2, "z"), 0);
}

}  // namespace
}  // namespace fsdp::schedule::memory_bounds_test
