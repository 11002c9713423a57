// Times of collectives, against NCCL's model worked out by hand and against published measurements.
#include "planner/time/collective_time.h"

#include <gtest/gtest.h>

#include <cmath>
#include <stdexcept>
#include <utility>
#include <vector>

#include "planner/target/known_devices.h"
#include "planner/time/busbw_curve.h"

namespace fsdp::planner::collective_time_test {
namespace {

constexpr double kKibibyte = 1 << 10;
constexpr double kMebibyte = 1 << 20;
constexpr double kGibibyte = 1 << 30;

LinkSpeed allow(LinkSpeed links, bool ll, bool ll128, bool simple) {
  links.protocols = {ll, ll128, simple};
  links.trees = false;
  links.launch = 0;
  return links;
}

double busbw(CollectiveFunction function, double bytes, const Topology& topology, const LinkSpeed& links) {
  return bytes * bus_factor(function, topology.ranks) / collective_time(function, bytes, topology, links).seconds();
}

double gather_seconds(double bytes, const Topology& topology, const LinkSpeed& links) {
  return collective_time(CollectiveFunction::kAllGather, bytes, topology, links).seconds();
}

TEST(CollectiveTime, OneRankAndNoBytesTakeNoTime) {
  const LinkSpeed links = find_known_device("h100-80")->host_links(8);
  EXPECT_EQ(gather_seconds(kGibibyte, {.ranks = 1}, links), 0);
  EXPECT_EQ(gather_seconds(0, {.ranks = 8}, links), 0);
  EXPECT_EQ(collective_time(CollectiveFunction::kAllReduce, 0, {.ranks = 8}, links).algorithm,
            CollectiveAlgorithm::kNone);
}

TEST(CollectiveTime, BusFactorsAreThoseOfNcclTests) {
  EXPECT_DOUBLE_EQ(bus_factor(CollectiveFunction::kAllGather, 8), 7.0 / 8);
  EXPECT_DOUBLE_EQ(bus_factor(CollectiveFunction::kReduceScatter, 8), 7.0 / 8);
  EXPECT_DOUBLE_EQ(bus_factor(CollectiveFunction::kAllReduce, 8), 14.0 / 8);
  EXPECT_DOUBLE_EQ(bus_factor(CollectiveFunction::kBroadcast, 8), 1);
}

// tuning.cc: base, 7 steps over NVLink.
TEST(CollectiveTime, RingsInsideANodeHaveTheLatencyOfTheirProtocol) {
  const LinkSpeed links = find_known_device("h100-80")->host_links(8);
  const auto latency = [&](bool ll, bool ll128, bool simple) {
    return collective_time(CollectiveFunction::kAllGather, kMebibyte, {.ranks = 8}, allow(links, ll, ll128, simple))
        .latency;
  };
  EXPECT_NEAR(latency(true, false, false), (6.6 + 7 * 0.6) * 1e-6, 1e-12);
  EXPECT_NEAR(latency(false, true, false), (14 + 7 * 1.9) * 1e-6, 1e-12);
  EXPECT_NEAR(latency(false, false, true), (8.4 + 7 * 3.4) * 1e-6, 1e-12);
}

// 511 steps, 63 of them over the network.
TEST(CollectiveTime, ARingOf512RanksWaitsFor2Milliseconds) {
  const LinkSpeed links = allow(find_known_device("a100-80")->host_links(8), false, false, true);
  const CollectiveTime time =
      collective_time(CollectiveFunction::kAllGather, kGibibyte, {.ranks = 512, .nodes = 64}, links);
  EXPECT_NEAR(time.latency, (8.4 + 448 * 3.4 + 63 * 14) * 1e-6, 1e-10);
  const CollectiveTime reduced =
      collective_time(CollectiveFunction::kAllReduce, kGibibyte, {.ranks = 512, .nodes = 64}, links);
  EXPECT_NEAR(reduced.latency, 1.4 * (8.4 + 2 * (448 * 3.4 + 63 * 14)) * 1e-6, 1e-10);
}

// Posts to the NIC take 2 us there, three for each step of Simple.
TEST(CollectiveTime, HostsWithAmdProcessorsPostMoreSlowly) {
  LinkSpeed links = allow(find_known_device("a100-80")->host_links(8), false, false, true);
  links.host = HostCpu::kAmd;
  const Topology topology{.ranks = 16, .nodes = 2};
  EXPECT_NEAR(collective_time(CollectiveFunction::kAllGather, kGibibyte, topology, links).latency,
              (8.4 + 14 * 6 + 14) * 1e-6, 1e-12);
}

TEST(CollectiveTime, OneRankANodeTakesTheNetworkLatencyOfTrees) {
  const LinkSpeed links = allow(find_known_device("a100-80")->host_links(8), false, true, false);
  EXPECT_NEAR(collective_time(CollectiveFunction::kAllGather, kMebibyte, {.ranks = 4, .nodes = 4}, links).latency,
              (14 + 3 * 8.5) * 1e-6, 1e-12);
}

TEST(CollectiveTime, SmallMessagesTakeLLAndLargeOnesSimple) {
  const LinkSpeed links = find_known_device("h100-80")->host_links(8);
  const auto protocol = [&](double bytes) {
    return collective_time(CollectiveFunction::kAllGather, bytes, {.ranks = 8}, links).protocol;
  };
  EXPECT_EQ(protocol(kKibibyte), Protocol::kLL);
  EXPECT_EQ(protocol(8 * kMebibyte), Protocol::kLL128);
  EXPECT_EQ(protocol(kGibibyte), Protocol::kSimple);
}

TEST(CollectiveTime, WithoutNVLinkThereIsNoLL128) {
  const LinkSpeed links = find_known_device("rtx4090")->host_links(4);
  for (double bytes = kKibibyte; bytes <= kGibibyte; bytes *= 2) {
    EXPECT_NE(collective_time(CollectiveFunction::kAllGather, bytes, {.ranks = 4}, links).protocol, Protocol::kLL128);
  }
  EXPECT_THROW(gather_seconds(kMebibyte, {.ranks = 4}, allow(links, false, true, false)), std::invalid_argument);
}

// 16 ranks: 14 steps inside and 1 between nodes, as a ring; 7 up and down, and one hop, as a tree.
TEST(CollectiveTime, AllReducesAcrossNodesMayTakeTrees) {
  LinkSpeed links = find_known_device("a100-80")->host_links(8);
  links.launch = 0;
  links.protocols = {true, false, false};
  const Topology topology{.ranks = 16, .nodes = 2};
  const CollectiveTime tree = collective_time(CollectiveFunction::kAllReduce, 4 * kKibibyte, topology, links);
  EXPECT_EQ(tree.algorithm, CollectiveAlgorithm::kTree);
  EXPECT_NEAR(tree.latency, (6.8 + 2 * (7 * 0.6 + 5)) * 1e-6, 1e-12);
  const CollectiveTime gather = collective_time(CollectiveFunction::kAllGather, 4 * kKibibyte, topology, links);
  EXPECT_EQ(gather.algorithm, CollectiveAlgorithm::kRing);
}

// A tree sends each byte out of both nodes once: NVLink limits it, while NICs limit the ring.
TEST(CollectiveTime, TreesOn2NodesUseTheNicsOnce) {
  LinkSpeed links = find_known_device("a100-80")->host_links(8);
  links.protocols = {false, false, true};
  const CollectiveTime two =
      collective_time(CollectiveFunction::kAllReduce, kGibibyte, {.ranks = 16, .nodes = 2}, links);
  EXPECT_EQ(two.algorithm, CollectiveAlgorithm::kTree);
  EXPECT_DOUBLE_EQ(two.transfer, 2 * kGibibyte / (0.92 * 235e9));
  EXPECT_LE(two.node_bytes / links.node_bandwidth(), two.transfer);
  const CollectiveTime four =
      collective_time(CollectiveFunction::kAllReduce, kGibibyte, {.ranks = 32, .nodes = 4}, links);
  EXPECT_EQ(four.algorithm, CollectiveAlgorithm::kRing);
}

// Each rank of 4 nodes reduces with its peers, so 8 groups share the NICs of a node.
TEST(CollectiveTime, GroupsOfANodeShareItsNics) {
  LinkSpeed links = allow(find_known_device("h100-80")->host_links(8), false, false, true);
  links.nic_efficiency = 1;
  const CollectiveTime alone =
      collective_time(CollectiveFunction::kAllReduce, kGibibyte, {.ranks = 4, .nodes = 4}, links);
  const CollectiveTime shared =
      collective_time(CollectiveFunction::kAllReduce, kGibibyte, {.ranks = 4, .nodes = 4, .groups_per_node = 8}, links);
  EXPECT_DOUBLE_EQ(shared.transfer, 1.5 * kGibibyte / 50e9);
  EXPECT_DOUBLE_EQ(shared.transfer, 8 * alone.transfer);
  EXPECT_DOUBLE_EQ(shared.node_bytes, 8 * alone.node_bytes);
  EXPECT_EQ(shared.inside_bytes, 0);
}

TEST(CollectiveTime, RingsAreAsFastAsTheSlowerOfNVLinkAndNics) {
  LinkSpeed links = allow(find_known_device("h100-80")->host_links(8), false, false, true);
  const Topology topology{.ranks = 32, .nodes = 4};
  EXPECT_NEAR(busbw(CollectiveFunction::kAllGather, 64 * kGibibyte, topology, links), 362e9, 1e9);
  links.nics = 4;
  EXPECT_NEAR(busbw(CollectiveFunction::kAllGather, 64 * kGibibyte, topology, links), 0.92 * 200e9, 1e9);
  links.oversubscription = 2;
  EXPECT_NEAR(busbw(CollectiveFunction::kAllGather, 64 * kGibibyte, topology, links), 0.92 * 100e9, 1e9);
}

// ml-engineering, network: 8 x H200.
TEST(CollectiveTime, FollowsPublishedGathersOfH200) {
  const LinkSpeed links = find_known_device("h200")->host_links(8);
  EXPECT_NEAR(busbw(CollectiveFunction::kAllGather, 16 * kGibibyte, {.ranks = 8}, links), 361.4e9, 1e9);
  EXPECT_NEAR(busbw(CollectiveFunction::kReduceScatter, 16 * kGibibyte, {.ranks = 8}, links), 362.9e9, 1.5e9);
}

TEST(CollectiveTime, MeasuredAllReducesReplaceTheModel) {
  const LinkSpeed links = find_known_device("h200")->host_links(8);
  const std::vector<std::pair<double, double>> published = {{1, 39.93}, {16, 219.89}, {64, 346.51}, {512, 450.29}};
  for (const auto& [mebibytes, gigabytes] : published) {
    EXPECT_NEAR(busbw(CollectiveFunction::kAllReduce, mebibytes * kMebibyte, {.ranks = 8}, links), gigabytes * 1e9, 1)
        << mebibytes;
  }
  EXPECT_NE(collective_time(CollectiveFunction::kAllReduce, kMebibyte, {.ranks = 4}, links).algorithm,
            CollectiveAlgorithm::kMeasured);
}

TEST(CollectiveTime, CurvesAreInterpolatedInLogarithms) {
  const BusbwCurve curve{.ranks = 8, .points = {{1e6, 10e9}, {4e6, 40e9}, {16e6, 90e9}}};
  EXPECT_DOUBLE_EQ(busbw_at(curve, 4e6), 40e9);
  EXPECT_NEAR(busbw_at(curve, 2e6), 20e9, 1);
  EXPECT_NEAR(busbw_at(curve, 8e6), 60e9, 1);
  EXPECT_DOUBLE_EQ(busbw_at(curve, 1e9), 90e9);
  EXPECT_DOUBLE_EQ(busbw_at(curve, 1e3), 10e6);  // 100 us, as at 1 MB
}

// With SHARP the bus bandwidth exceeds that of the links: the flow still fits through them in its time.
TEST(CollectiveTime, AMeasuredFlowFitsThroughItsLinks) {
  for (const char* device : {"a100-80", "h200", "b200"}) {
    const LinkSpeed links = find_known_device(device)->host_links(8);
    for (double bytes = kKibibyte; bytes <= 16 * kGibibyte; bytes *= 2) {
      const CollectiveTime time = collective_time(CollectiveFunction::kAllReduce, bytes, {.ranks = 8}, links);
      EXPECT_LE(time.inside_bytes / links.ring, time.transfer * (1 + 1e-12)) << device << " " << bytes;
      EXPECT_GT(time.seconds(), 0);
    }
  }
}

// ml-engineering, network: 8 x B200 with 8 NICs of 50 GB/s, 4 nodes. Its large sizes bound the efficiency of NICs; the
// others follow NCCL's ring with protocol Simple.
TEST(CollectiveTime, FollowsPublishedAllReducesAcross4Nodes) {
  const Topology topology{.ranks = 32, .nodes = 4};
  LinkSpeed links = find_known_device("b200")->host_links(8);
  links.protocols = {false, false, true};
  links.trees = false;
  const std::vector<std::pair<double, double>> published = {
      {1, 5.37},     {2, 10.38},     {4, 18.90},     {8, 35.12},     {16, 64.43},    {64, 156.74},
      {512, 326.90}, {1024, 361.99}, {4096, 377.34}, {8192, 380.39}, {16384, 381.80}};
  for (const auto& [mebibytes, gigabytes] : published) {
    EXPECT_NEAR(busbw(CollectiveFunction::kAllReduce, mebibytes * kMebibyte, topology, links) / (gigabytes * 1e9), 1,
                0.10)
        << mebibytes;
  }
  links.nic_efficiency = 0.955;
  EXPECT_NEAR(busbw(CollectiveFunction::kAllReduce, 16 * kGibibyte, topology, links), 381.8e9, 2e9);
}

// 4 GiB in gathers of one size on 2 nodes of 8 A100, over the time of one gather: the paper's figure 2(b) rises below
// 33 million elements in fp32.
TEST(CollectiveTime, SplittingAGatherCostsLittleDownTo128MiB) {
  LinkSpeed links = find_known_device("a100-80")->host_links(8);
  links.protocols = {false, false, true};
  links.nic_efficiency = 1;
  const Topology topology{.ranks = 16, .nodes = 2};
  const double whole = gather_seconds(4 * kGibibyte, topology, links);
  const std::vector<std::pair<double, double>> expected = {{128, 1.12}, {64, 1.23}, {32, 1.47}, {16, 1.95}, {4, 4.80}};
  for (const auto& [mebibytes, ratio] : expected) {
    const double split = 4096 / mebibytes * gather_seconds(mebibytes * kMebibyte, topology, links);
    EXPECT_NEAR(split / whole, ratio, 0.01) << mebibytes;
  }
  const Topology large{.ranks = 512, .nodes = 64};
  const double at_1_gib = 4 * gather_seconds(kGibibyte, large, links) / gather_seconds(4 * kGibibyte, large, links);
  EXPECT_NEAR(at_1_gib, 1.30, 0.01);
}

TEST(CollectiveTime, MoreBytesTakeLonger) {
  const std::vector<Topology> topologies = {
      {.ranks = 2}, {.ranks = 8}, {.ranks = 16, .nodes = 2}, {.ranks = 7, .nodes = 7}, {.ranks = 512, .nodes = 64}};
  for (const Topology& topology : topologies) {
    for (const CollectiveFunction function :
         {CollectiveFunction::kAllGather, CollectiveFunction::kReduceScatter, CollectiveFunction::kBroadcast}) {
      double before = 0;
      for (double bytes = 1; bytes <= 16 * kGibibyte; bytes *= 3) {
        const double seconds =
            collective_time(function, bytes, topology, find_known_device("h100-80")->host_links(8)).seconds();
        EXPECT_GE(seconds, before);
        before = seconds;
      }
    }
  }
}

}  // namespace
}  // namespace fsdp::planner::collective_time_test
