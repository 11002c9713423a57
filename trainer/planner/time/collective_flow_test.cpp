// Shares of the device and bytes on links.
#include "planner/time/collective_flow.h"

#include <gtest/gtest.h>

namespace fsdp::planner::collective_flow_test {
namespace {

const LinkSpeed kLinks = {.ring = 100, .inside_share = 0.15, .network_share = 0.02};

ReplayFlow flow_of(double transfer, double inside_bytes, double node_bytes) {
  return collective_flow({.transfer = transfer,
                          .inside_bytes = inside_bytes,
                          .node_bytes = node_bytes,
                          .algorithm = CollectiveAlgorithm::kRing},
                         kLinks);
}

TEST(CollectiveFlow, InsideAHost) {
  const ReplayFlow flow = flow_of(2, 200, 0);
  EXPECT_DOUBLE_EQ(flow.arithmetic_share, 0.15);
  EXPECT_DOUBLE_EQ(flow.memory_share, 0.15);
  ASSERT_EQ(flow.uses.size(), 1u);
  EXPECT_EQ(flow.uses[0].link, kLinkInside);
}

TEST(CollectiveFlow, AcrossHostsTheMemoryIsUsedByTheRate) {
  const ReplayFlow half = flow_of(4, 200, 800);
  EXPECT_DOUBLE_EQ(half.arithmetic_share, 0.15);
  EXPECT_DOUBLE_EQ(half.memory_share, 0.075);
  EXPECT_EQ(half.uses.size(), 2u);
  EXPECT_DOUBLE_EQ(flow_of(1000, 200, 800).memory_share, 0.02);  // at least that of the network
}

TEST(CollectiveFlow, OneRankOfEachHost) {
  const ReplayFlow flow = flow_of(4, 0, 800);
  EXPECT_DOUBLE_EQ(flow.arithmetic_share, 0.02);
  EXPECT_DOUBLE_EQ(flow.memory_share, 0.02);
}

TEST(CollectiveFlow, NothingMoves) { EXPECT_DOUBLE_EQ(collective_flow({}, kLinks).arithmetic_share, 0); }

}  // namespace
}  // namespace fsdp::planner::collective_flow_test
