#include "base/interruption.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "base/finally.h"
#include "fsdp/interruption.h"

namespace fsdp::base::interruption_test {
namespace {

TEST(Interruption, LastsUntilItIsCleared) {
  const Finally cleared(&Interruption::clear);
  EXPECT_FALSE(waits_are_interrupted());
  interrupt_waits();
  EXPECT_TRUE(waits_are_interrupted());
  EXPECT_FALSE(Interruption::sleep_for(std::chrono::hours(1)));
  EXPECT_FALSE(Interruption::sleep_for(std::chrono::milliseconds(0)));
  allow_waits();
  EXPECT_FALSE(Interruption::is_requested());
  EXPECT_TRUE(Interruption::sleep_for(std::chrono::milliseconds(1)));
}

TEST(Interruption, EndsASleepThatRuns) {
  const Finally cleared(&Interruption::clear);
  std::thread other([] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    interrupt_waits();
  });
  EXPECT_FALSE(Interruption::sleep_for(std::chrono::hours(1)));
  other.join();
}

}  // namespace
}  // namespace fsdp::base::interruption_test
