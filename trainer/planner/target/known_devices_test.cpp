// The numbers of the devices that a plan knows by name.
#include "planner/target/known_devices.h"

#include <gtest/gtest.h>

#include <tuple>

#include "planner/target/cluster.h"

namespace fsdp::planner::known_devices_test {
namespace {

bool is_part(double value) { return value > 0 && value <= 1; }

TEST(KnownDevices, NamesAreFullOrOfAFamily) {
  EXPECT_EQ(find_known_device("h100-96")->profile.name, "h100-96");
  EXPECT_EQ(find_known_device("h100")->profile.name, "h100-80");
  EXPECT_EQ(find_known_device("h10"), nullptr);
}

TEST(KnownDevices, AllHaveMemory) {
  for (const KnownDevice& device : known_devices()) {
    EXPECT_GT(device.profile.memory, int64_t{20} << 30) << device.profile.name;
    EXPECT_GT(device.profile.matmul_workspace, int64_t{8} << 20) << device.profile.name;
    EXPECT_FALSE(device.profile.title.empty()) << device.profile.name;
  }
}

TEST(KnownDevices, AllHaveRates) {
  for (const KnownDevice& device : known_devices()) {
    const auto& [profile, speed] = std::tie(device.profile, device.speed);
    EXPECT_GT(speed.float32, 0) << profile.name;
    EXPECT_GE(speed.tensor_float32, speed.float32) << profile.name;
    EXPECT_GE(speed.bfloat16, speed.tensor_float32) << profile.name;
    EXPECT_EQ(speed.float16, speed.bfloat16) << profile.name;
    EXPECT_GT(speed.memory_bandwidth, 1e12) << profile.name;
    EXPECT_TRUE(is_part(speed.memory_efficiency) && is_part(speed.matmul_efficiency)) << profile.name;
    EXPECT_TRUE(is_part(speed.attention_forward) && is_part(speed.attention_backward)) << profile.name;
  }
}

// Devices of the runs in docs/benchmarks/planned-times.md, and those with the same multiprocessors.
TEST(KnownDevices, ProductsOfAmpereAndHopperAreCalibrated) {
  for (const KnownDevice& device : known_devices()) {
    Cluster cluster;
    use_device(device, cluster);
    const bool calibrated = device.speed.multiprocessors == 108 || device.speed.multiprocessors == 132;
    EXPECT_EQ(to_string(cluster.provenances.at("device.matmul_efficiency")), calibrated ? "calibrated" : "guess")
        << device.profile.name;
  }
}

TEST(KnownDevices, FromAdaAndHopperOnDevicesHaveFloat8) {
  for (const KnownDevice& device : known_devices()) {
    const bool ampere = device.speed.multiprocessors == 108;
    EXPECT_NEAR(device.speed.float8 / device.speed.bfloat16, ampere ? 0 : 2, 0.01) << device.profile.name;
  }
}

TEST(KnownDevices, AllHaveLinks) {
  for (const KnownDevice& device : known_devices()) {
    const LinkSpeed links = device.host_links(8);
    EXPECT_GT(links.ring, 0) << device.profile.name;
    EXPECT_GT(links.node_bandwidth(), 0) << device.profile.name;
    EXPECT_GT(links.host_copy, 0) << device.profile.name;
    EXPECT_EQ(links.nics, device.profile.name == "rtx4090" ? 1 : 8) << device.profile.name;
  }
}

TEST(KnownDevices, CurvesAscendInSize) {
  for (const KnownDevice& device : known_devices()) {
    for (const BusbwCurve& curve : device.links.curves) {
      EXPECT_EQ(curve.points.front().bytes, 32 << 10);
      EXPECT_EQ(curve.points.back().bytes, 16.0 * (1 << 30));
    }
  }
}

}  // namespace
}  // namespace fsdp::planner::known_devices_test
