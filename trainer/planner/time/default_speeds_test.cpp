// The speeds and links of devices that a plan knows by name.
#include "planner/time/default_speeds.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "planner/time/default_links.h"

namespace fsdp::planner::default_speeds_test {
namespace {

const std::vector<std::string> kNames = {"a100-40", "a100-80", "h100-80", "h100-96",
                                         "h200",    "b200",    "gb200",   "rtx4090"};

bool is_part(double value) { return value > 0 && value <= 1; }

TEST(DefaultSpeeds, EveryDeviceHasAllRates) {
  for (const std::string& name : kNames) {
    const DeviceSpeed* speed = find_device_speed(name);
    ASSERT_NE(speed, nullptr) << name;
    EXPECT_GT(speed->float32, 0) << name;
    EXPECT_GE(speed->tensor_float32, speed->float32) << name;
    EXPECT_GE(speed->bfloat16, speed->tensor_float32) << name;
    EXPECT_EQ(speed->float16, speed->bfloat16) << name;
    EXPECT_GT(speed->memory_bandwidth, 1e12) << name;
    EXPECT_TRUE(is_part(speed->memory_efficiency) && is_part(speed->matmul_efficiency)) << name;
    EXPECT_TRUE(is_part(speed->attention_forward) && is_part(speed->attention_backward)) << name;
  }
  EXPECT_EQ(find_device_speed("h100"), nullptr);
}

TEST(DefaultSpeeds, EveryDeviceHasLinks) {
  for (const std::string& name : kNames) {
    const LinkSpeed links = default_links(name, 8);
    EXPECT_GT(links.ring, 0) << name;
    EXPECT_GT(links.node_bandwidth(), 0) << name;
    EXPECT_GT(links.host_copy, 0) << name;
    EXPECT_EQ(links.nics, name == "rtx4090" ? 1 : 8) << name;
  }
  EXPECT_THROW(default_links("h300", 8), std::invalid_argument);
}

TEST(DefaultSpeeds, CurvesAscendInSize) {
  for (const std::string& name : kNames) {
    for (const BusbwCurve& curve : default_links(name, 8).curves) {
      EXPECT_EQ(curve.points.front().bytes, 32 << 10);
      EXPECT_EQ(curve.points.back().bytes, 16.0 * (1 << 30));
    }
  }
}

}  // namespace
}  // namespace fsdp::planner::default_speeds_test
