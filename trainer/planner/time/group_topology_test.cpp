#include "planner/time/group_topology.h"

#include <gtest/gtest.h>

#include <numeric>

namespace fsdp::planner::group_topology_test {
namespace {

std::vector<int> every(int step, int count, int first = 0) {
  std::vector<int> ranks;
  for (int i = 0; i < count; ++i) ranks.push_back(first + i * step);
  return ranks;
}

void expect_topology(const std::vector<int>& ranks, int per_node, const Topology& wanted) {
  const Topology got = group_topology(ranks, per_node);
  EXPECT_EQ(got.ranks, wanted.ranks);
  EXPECT_EQ(got.nodes, wanted.nodes);
  EXPECT_EQ(got.groups_per_node, wanted.groups_per_node);
}

TEST(GroupTopology, OfAllRanks) {
  expect_topology(every(1, 8), 8, {.ranks = 8, .nodes = 1, .groups_per_node = 1});
  expect_topology(every(1, 32), 8, {.ranks = 32, .nodes = 4, .groups_per_node = 1});
}

// Sharded within nodes of 8 and replicated over 4 of them: 8 groups of replicas share a node's NICs.
TEST(GroupTopology, OfHybridSharding) {
  expect_topology(every(1, 8, 8), 8, {.ranks = 8, .nodes = 1, .groups_per_node = 1});
  expect_topology(every(8, 4, 3), 8, {.ranks = 4, .nodes = 4, .groups_per_node = 8});
}

// Shards of 4: two replicas are in each node, and 4 groups share the NICs.
TEST(GroupTopology, OfSeveralReplicasInANode) {
  expect_topology(every(4, 8, 1), 8, {.ranks = 8, .nodes = 4, .groups_per_node = 4});
}

}  // namespace
}  // namespace fsdp::planner::group_topology_test
