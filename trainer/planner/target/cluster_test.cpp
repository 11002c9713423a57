// Names of clusters.
#include "planner/target/cluster.h"

#include <gmock/gmock.h>

#include "config/errors.h"

namespace fsdp::planner::cluster_test {
namespace {

TEST(Cluster, OneHostOrSeveral) {
  const Cluster one = parse_cluster("8xh100");
  EXPECT_EQ(one.ranks(), 8);
  EXPECT_EQ(one.hosts, 1);
  EXPECT_EQ(one.device->name, "h100-80");
  EXPECT_EQ(one.text(), "8 x NVIDIA H100 SXM, 80 GB");
  const Cluster many = parse_cluster("64x8xa100-40");
  EXPECT_EQ(many.ranks(), 512);
  EXPECT_EQ(many.ranks_per_host, 8);
  EXPECT_EQ(many.text(), "64 hosts of 8 x NVIDIA A100, 40 GB");
}

TEST(Cluster, ANameBringsSpeeds) {
  const Cluster cluster = parse_cluster("2x8xh200");
  EXPECT_EQ(cluster.speed.memory_bandwidth, 4800e9);
  EXPECT_EQ(cluster.links.nics, 8);
}

TEST(Cluster, CpusAndDevicesWithAnX) {
  EXPECT_FALSE(parse_cluster("2x4xcpu").device);
  EXPECT_EQ(parse_cluster("2xrtx4090").device->name, "rtx4090");
}

std::string refusal(const std::string& name) {
  try {
    parse_cluster(name);
  } catch (const trainer::ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(Cluster, ErrorsSayWhatIsAccepted) {
  EXPECT_THAT(refusal("8xh300"), ::testing::AllOf(::testing::HasSubstr("no device is named \"h300\""),
                                                  ::testing::HasSubstr("h100-80"), ::testing::HasSubstr("64x8xa100")));
  EXPECT_THAT(refusal("h100"), ::testing::HasSubstr("number of ranks"));
  EXPECT_THAT(refusal("0xh100"), ::testing::HasSubstr("\"0\" is not a number from 1 to 1024"));
  EXPECT_THAT(refusal("8x8x8xh100"), ::testing::HasSubstr("number of ranks"));
  EXPECT_THAT(refusal(""), ::testing::HasSubstr("accepted"));
}

}  // namespace
}  // namespace fsdp::planner::cluster_test
