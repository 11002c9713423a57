// Compares learning rates with values computed by hand from transformers' formulas.
#include "loop/lr_schedule.h"

#include <gtest/gtest.h>

namespace fsdp::trainer::lr_schedule_test {
namespace {

TEST(LrSchedule, ConstantRisesThenStays) {
  const LrSchedule schedule(LrSchedulerType::kConstant, 0.8, 4, 10);
  EXPECT_DOUBLE_EQ(schedule.at(0), 0.0);
  EXPECT_DOUBLE_EQ(schedule.at(1), 0.2);
  EXPECT_DOUBLE_EQ(schedule.at(3), 0.6);
  EXPECT_DOUBLE_EQ(schedule.at(4), 0.8);
  EXPECT_DOUBLE_EQ(schedule.at(9), 0.8);
  EXPECT_DOUBLE_EQ(LrSchedule(LrSchedulerType::kConstant, 0.8, 0, 10).at(0), 0.8);
}

TEST(LrSchedule, LinearFallsToZeroAtMaxSteps) {
  const LrSchedule schedule(LrSchedulerType::kLinear, 1.0, 2, 10);
  EXPECT_DOUBLE_EQ(schedule.at(0), 0.0);
  EXPECT_DOUBLE_EQ(schedule.at(1), 0.5);
  EXPECT_DOUBLE_EQ(schedule.at(2), 1.0);
  EXPECT_DOUBLE_EQ(schedule.at(4), 0.75);
  EXPECT_DOUBLE_EQ(schedule.at(9), 0.125);
  EXPECT_DOUBLE_EQ(schedule.at(10), 0.0);
  EXPECT_DOUBLE_EQ(schedule.at(11), 0.0);
}

TEST(LrSchedule, CosineFallsAlongHalfAWave) {
  const LrSchedule schedule(LrSchedulerType::kCosine, 2.0, 2, 8);
  EXPECT_DOUBLE_EQ(schedule.at(1), 1.0);
  EXPECT_DOUBLE_EQ(schedule.at(2), 2.0);
  EXPECT_NEAR(schedule.at(4), 1.5, 1e-15);  // cos(pi/3) = 1/2
  EXPECT_NEAR(schedule.at(5), 1.0, 1e-15);
  EXPECT_NEAR(schedule.at(6), 0.5, 1e-15);
  EXPECT_NEAR(schedule.at(8), 0.0, 1e-15);
}

TEST(LrSchedule, WarmupOfTheWholeRunNeverFalls) {
  const LrSchedule schedule(LrSchedulerType::kLinear, 1.0, 4, 4);
  EXPECT_DOUBLE_EQ(schedule.at(3), 0.75);
  EXPECT_DOUBLE_EQ(schedule.at(4), 0.0);
}

// A short trial run of a config for a long run, as in Hugging Face's trainer.
TEST(LrSchedule, WarmupMayOutlastTheRun) {
  const LrSchedule schedule(LrSchedulerType::kCosine, 1.0, 10, 4);
  EXPECT_DOUBLE_EQ(schedule.at(3), 0.3);
}

}  // namespace
}  // namespace fsdp::trainer::lr_schedule_test
