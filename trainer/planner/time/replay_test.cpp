// Replays that can be worked out by hand, and properties of random ones.
#include "planner/time/replay.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <stdexcept>
#include <vector>

#include "planner/target/known_devices.h"
#include "planner/time/collective_flow.h"

namespace fsdp::planner::replay_test {
namespace {

constexpr double kTolerance = 1e-9;

// Neither the host nor launches take time, unless a test says so.
class Script {
 public:
  explicit Script(int streams) {
    replay.streams = streams;
    replay.launch_delay = 0;
  }
  size_t kernel(int stream, double seconds) { return add({.stream = stream, .duration = seconds}); }
  size_t memory_kernel(int stream, double seconds) {
    return add({.memory_bound = true, .stream = stream, .duration = seconds});
  }
  size_t collective(int stream, int flow) {
    return add({.kind = ReplayKind::kCollective, .stream = stream, .flow = flow});
  }
  size_t record(int stream, int64_t event) {
    return add({.kind = ReplayKind::kRecord, .stream = stream, .event = event});
  }
  size_t wait(int stream, int64_t event) {
    return add({.kind = ReplayKind::kStreamWait, .stream = stream, .event = event});
  }
  size_t host_waits_event(int64_t event) { return add({.kind = ReplayKind::kHostWaitsEvent, .event = event}); }
  size_t host_waits_stream(int stream) { return add({.kind = ReplayKind::kHostWaitsStream, .stream = stream}); }
  size_t host_work(double seconds) { return add({.kind = ReplayKind::kHostWork, .host = seconds}); }

  size_t add(ReplayItem item) {
    item.host += host;
    replay.items.push_back(item);
    return replay.items.size() - 1;
  }

  Replay replay;
  double host = 0;  // of each item that is added
};

void expect_times(const ReplayedItem& item, double begin, double end) {
  EXPECT_NEAR(item.begin, begin, kTolerance);
  EXPECT_NEAR(item.end, end, kTolerance);
}

TEST(Replay, NothingTakesNoTime) {
  EXPECT_EQ(run_replay({}).seconds, 0);
  EXPECT_EQ(run_replay(Script(3).replay).use(2).total(), 0);
}

TEST(Replay, AStreamRunsInOrderAndStreamsRunTogether) {
  Script script(2);
  const size_t a = script.kernel(0, 3), b = script.kernel(0, 2), c = script.kernel(1, 4);
  const ReplayResult result = run_replay(script.replay);
  expect_times(result.items[a], 0, 3);
  expect_times(result.items[b], 3, 5);
  expect_times(result.items[c], 0, 4);
  EXPECT_NEAR(result.seconds, 5, kTolerance);
  EXPECT_NEAR(result.use(1).idle, 1, kTolerance);
}

// The second kernel's host time begins when the first kernel has ended.
TEST(Replay, AHostThatComputesGoesOnAfterItsWork) {
  for (const bool computes : {false, true}) {
    Script script(1);
    script.replay.host_computes = computes;
    script.replay.flows = {{.latency = 4}};
    script.host = 1;
    const size_t a = script.kernel(0, 3), b = script.collective(0, 0), c = script.kernel(0, 2);
    const ReplayResult result = run_replay(script.replay);
    const double gap = computes ? 1 : 0;
    expect_times(result.items[a], 1, 4);
    expect_times(result.items[b], 4 + gap, 8 + gap);
    expect_times(result.items[c], 8 + 2 * gap, 10 + 2 * gap);
    EXPECT_NEAR(result.use(0).host_bound, 1 + 2 * gap, kTolerance);
    EXPECT_NEAR(result.host_busy, 3, kTolerance);
    EXPECT_NEAR(result.host_waiting, computes ? 9 : 0, kTolerance);
  }
}

// A kernel of 10 s on stream 0, beside it a gather on stream 1, and another such kernel that waits for the gather.
struct GatherBesideKernel {
  explicit GatherBesideKernel(double transfer) {
    script.replay.flows = {{.latency = 1, .transfer = transfer}};
    script.kernel(0, 10);
    script.collective(1, 0);
    script.record(1, 7);
    wait = script.wait(0, 7);
    next = script.kernel(0, 10);
  }

  Script script{2};
  size_t wait = 0;
  size_t next = 0;
};

TEST(Replay, AGatherThatEndsInTimeIsNotExposed) {
  const GatherBesideKernel run(/*transfer=*/3);
  const ReplayResult result = run_replay(run.script.replay);
  expect_times(result.items[run.next], 10, 20);
  EXPECT_NEAR(result.use(0).busy, 20, kTolerance);
  EXPECT_NEAR(result.use(0).exposed, 0, kTolerance);
  EXPECT_NEAR(result.use(1).busy, 4, kTolerance);
  EXPECT_NEAR(result.use(1).idle, 16, kTolerance);
}

TEST(Replay, TheRestOfALateGatherIsExposed) {
  const GatherBesideKernel run(/*transfer=*/11);
  const ReplayResult result = run_replay(run.script.replay);
  expect_times(result.items[run.wait], 10, 12);
  expect_times(result.items[run.next], 12, 22);
  EXPECT_NEAR(result.use(0).exposed, 2, kTolerance);
}

// While 4 s of a collective run, kernels get 3/4 or 1/2 of the device.
TEST(Replay, CollectivesSlowKernelsDown) {
  for (const bool memory_bound : {false, true}) {
    Script script(2);
    script.replay.flows = {{.latency = 1, .transfer = 3, .arithmetic_share = 0.25, .memory_share = 0.5}};
    script.collective(1, 0);
    if (memory_bound) {
      script.memory_kernel(0, 10);
    } else {
      script.kernel(0, 10);
    }
    EXPECT_NEAR(run_replay(script.replay).seconds, memory_bound ? 4 + (10 - 2) : 4 + (10 - 3), kTolerance);
  }
}

// 100 and 50 bytes through a link of 10 bytes a second: 5 each until 10 s, then 10 for the rest.
TEST(Replay, FlowsShareALinkEqually) {
  Script script(2);
  script.replay.links = {10};
  script.replay.flows = {{.uses = {{0, 100}}}, {.uses = {{0, 50}}}};
  const size_t large = script.collective(0, 0), small = script.collective(1, 1);
  const ReplayResult result = run_replay(script.replay);
  expect_times(result.items[small], 0, 10);
  expect_times(result.items[large], 0, 15);
}

// The second flow comes after 4 s and moves data after 2 s more: until then the first one has the link for itself.
TEST(Replay, SharesChangeWhenDataBeginToMove) {
  Script script(2);
  script.replay.links = {10};
  script.replay.flows = {{.uses = {{0, 100}}}, {.latency = 2, .uses = {{0, 50}}}};
  const size_t first = script.collective(0, 0);
  script.kernel(1, 4);
  const size_t second = script.collective(1, 1);
  const ReplayResult result = run_replay(script.replay);
  // At 6 s 40 and 50 bytes are left; at 14 s the first one ends, and 10 bytes of the second one are left.
  expect_times(result.items[first], 0, 14);
  expect_times(result.items[second], 4, 15);
}

TEST(Replay, FlowsOnDifferentLinksDoNotMeet) {
  Script script(2);
  script.replay.links = {10, 10};
  script.replay.flows = {{.uses = {{0, 100}}}, {.uses = {{1, 50}}}};
  script.collective(0, 0);
  script.collective(1, 1);
  EXPECT_NEAR(run_replay(script.replay).seconds, 10, kTolerance);
}

// Each uses half of the link at most, for other reasons.
TEST(Replay, SlowFlowsFitBesideOneAnother) {
  Script script(2);
  script.replay.links = {10};
  script.replay.flows = {{.transfer = 20, .uses = {{0, 100}}}};
  script.collective(0, 0);
  script.collective(1, 0);
  EXPECT_NEAR(run_replay(script.replay).seconds, 20, kTolerance);
}

// The host needs 5 for each of 10 kernels of 2, and a launch 4.
TEST(Replay, ShortKernelsWaitForTheHost) {
  Script script(1);
  script.replay.launch_delay = 4;
  script.host = 5;
  for (int i = 0; i < 10; ++i) script.kernel(0, 2);
  const ReplayResult result = run_replay(script.replay);
  expect_times(result.items[0], 9, 11);
  expect_times(result.items[9], 54, 56);
  EXPECT_NEAR(result.use(0).busy, 20, kTolerance);
  EXPECT_NEAR(result.use(0).host_bound, 36, kTolerance);
  EXPECT_NEAR(result.host_busy, 50, kTolerance);
}

// Kernels of 8: the host is ahead after the first.
TEST(Replay, LongKernelsHideTheHost) {
  Script script(1);
  script.replay.launch_delay = 4;
  script.host = 5;
  for (int i = 0; i < 10; ++i) script.kernel(0, 8);
  EXPECT_NEAR(run_replay(script.replay).seconds, 9 + 80, kTolerance);
}

TEST(Replay, AWaitIsForTheLatestRecordAtItsIssue) {
  Script script(2);
  const size_t early = script.wait(1, 3);  // no record yet
  script.kernel(0, 1);
  script.record(0, 3);
  const size_t first = script.wait(1, 3);
  script.kernel(0, 1);
  script.record(0, 3);
  const size_t second = script.wait(1, 3);
  script.kernel(0, 5);
  const ReplayResult result = run_replay(script.replay);
  EXPECT_NEAR(result.items[early].end, 0, kTolerance);
  EXPECT_NEAR(result.items[first].end, 1, kTolerance);
  EXPECT_NEAR(result.items[second].end, 2, kTolerance);
  // Stream 0 has no collectives.
  EXPECT_NEAR(result.use(1).exposed, 0, kTolerance);
}

TEST(Replay, TheHostWaitsForEventsAndStreams) {
  Script script(2);
  script.kernel(0, 3);
  script.record(0, 1);
  script.kernel(0, 4);
  script.kernel(1, 9);
  const size_t event = script.host_waits_event(1);
  const size_t stream = script.host_waits_stream(0);
  const size_t work = script.host_work(0.5);
  const size_t all = script.host_waits_stream(-1);
  const size_t after = script.kernel(0, 1);
  const ReplayResult result = run_replay(script.replay);
  expect_times(result.items[event], 0, 3);
  expect_times(result.items[stream], 3, 7);
  expect_times(result.items[work], 7.5, 7.5);
  expect_times(result.items[all], 7.5, 9);
  expect_times(result.items[after], 9, 10);
  EXPECT_NEAR(result.host_waiting, 3 + 4 + 1.5, kTolerance);
  EXPECT_NEAR(result.use(0).host_bound, 2, kTolerance);
}

// The next gather and the reduction of a layer, 416 MiB in bf16 on 8 H100, on streams of their own: the ring has no
// more bandwidth for two, so both together take nearly as long as one after the other.
TEST(Replay, ATwinDoesNotMakeAReductionFree) {
  const LinkSpeed links = find_known_device("h100-80")->host_links(8);
  const double bytes = 416 * 1048576.0;
  const CollectiveTime gather = collective_time(CollectiveFunction::kAllGather, bytes, {.ranks = 8}, links);
  const CollectiveTime reduction = collective_time(CollectiveFunction::kReduceScatter, bytes, {.ranks = 8}, links);
  Script script(2);
  script.replay.links = node_links(links);
  script.replay.flows = {collective_flow(gather, links), collective_flow(reduction, links)};
  script.collective(0, 0);
  script.collective(1, 1);
  const double together = run_replay(script.replay).seconds;
  EXPECT_NEAR(together, gather.latency + gather.transfer + reduction.transfer, 1e-9);
  EXPECT_LT(together, gather.seconds() + reduction.seconds());
}

// 64 gathers inside nodes do not use the NICs, through which a reduction between nodes goes.
TEST(Replay, LevelsOfAHybridGroupUseDifferentLinks) {
  const LinkSpeed links = find_known_device("h100-80")->host_links(8);
  const CollectiveTime gather = collective_time(CollectiveFunction::kAllGather, 1e9, {.ranks = 8}, links);
  const CollectiveTime reduction =
      collective_time(CollectiveFunction::kAllReduce, 1e8, {.ranks = 8, .nodes = 8, .groups_per_node = 8}, links);
  Script script(2);
  script.replay.links = node_links(links);
  script.replay.flows = {collective_flow(gather, links), collective_flow(reduction, links)};
  const size_t a = script.collective(0, 0), b = script.collective(1, 1);
  const ReplayResult result = run_replay(script.replay);
  EXPECT_NEAR(result.items[a].end, gather.seconds(), kTolerance);
  EXPECT_NEAR(result.items[b].end, reduction.seconds(), kTolerance);
}

TEST(Replay, UseCanBeAskedForAPartOfTheTime) {
  Script script(1);
  script.host_work(2);
  script.kernel(0, 4);
  const ReplayResult result = run_replay(script.replay);
  const StreamUse use = use_between(result.streams[0], 1, 5);
  EXPECT_NEAR(use.host_bound, 1, kTolerance);
  EXPECT_NEAR(use.busy, 3, kTolerance);
}

TEST(Replay, MistakesAreRefused) {
  Script stream(1), flow(1), time(1), link(1), share(1);
  stream.kernel(1, 1);
  flow.collective(0, 0);
  time.kernel(0, -1);
  link.replay.flows = {{.uses = {{0, 1}}}};
  share.replay.flows = {{.arithmetic_share = 1}};
  for (const Script* script : {&stream, &flow, &time, &link, &share}) {
    EXPECT_THROW(run_replay(script->replay), std::invalid_argument);
  }
}

class RandomReplays : public ::testing::TestWithParam<int> {
 protected:
  static Replay make(int seed) {
    std::mt19937_64 random(static_cast<uint64_t>(seed));
    const auto below = [&](int limit) { return static_cast<int>(random() % static_cast<uint64_t>(limit)); };
    const auto seconds = [&](double most) { return most * static_cast<double>(random() % 1000) / 1000; };
    Script script(1 + below(5));
    script.replay.launch_delay = seconds(1e-5);
    script.replay.links = {1e9, 5e8};
    for (int i = 0; i < 4; ++i) {
      script.replay.flows.push_back({.latency = seconds(3e-5),
                                     .transfer = seconds(1e-4),
                                     .uses = {{below(2), seconds(1e5)}},
                                     .arithmetic_share = seconds(0.5),
                                     .memory_share = seconds(0.5)});
    }
    for (int i = 0; i < 2000; ++i) {
      const int kind = below(40);
      script.add({.kind = kind < 16   ? ReplayKind::kKernel
                          : kind < 22 ? ReplayKind::kCollective
                          : kind < 30 ? ReplayKind::kRecord
                          : kind < 37
                              ? ReplayKind::kStreamWait
                              : static_cast<ReplayKind>(kind - 37 + static_cast<int>(ReplayKind::kHostWaitsEvent)),
                  .memory_bound = below(2) == 0,
                  .stream = below(script.replay.streams),
                  .event = below(6),
                  .flow = below(4),
                  .host = seconds(1e-5),
                  .duration = seconds(5e-5)});
    }
    return script.replay;
  }
};

TEST_P(RandomReplays, EachStreamsTimeIsAccountedFor) {
  const Replay replay = make(GetParam());
  const ReplayResult result = run_replay(replay);
  std::vector<double> busy(static_cast<size_t>(replay.streams));
  for (size_t i = 0; i < replay.items.size(); ++i) {
    const ReplayItem& item = replay.items[i];
    if (item.kind != ReplayKind::kKernel && item.kind != ReplayKind::kCollective) continue;
    busy[static_cast<size_t>(item.stream)] += result.items[i].end - result.items[i].begin;
  }
  for (int stream = 0; stream < replay.streams; ++stream) {
    const StreamUse use = result.use(stream);
    EXPECT_NEAR(use.total(), result.seconds, 1e-9);
    EXPECT_NEAR(use.busy, busy[static_cast<size_t>(stream)], 1e-9);
  }
  EXPECT_LE(result.host_busy + result.host_waiting, result.seconds + 1e-9);
}

TEST_P(RandomReplays, OrderIsKept) {
  const Replay replay = make(GetParam());
  const ReplayResult result = run_replay(replay);
  std::vector<double> stream_end(static_cast<size_t>(replay.streams));
  std::map<int64_t, size_t> records;
  double issued = 0;
  for (size_t i = 0; i < replay.items.size(); ++i) {
    const ReplayItem& item = replay.items[i];
    const ReplayedItem& times = result.items[i];
    EXPECT_GE(times.issued, issued + item.host - 1e-12);
    issued = times.issued;
    EXPECT_GE(times.end, times.begin);
    const auto record = records.find(item.event);
    const bool waits = item.kind == ReplayKind::kStreamWait || item.kind == ReplayKind::kHostWaitsEvent;
    if (waits && record != records.end()) {
      EXPECT_GE(times.end, result.items[record->second].end);
    }
    if (item.kind == ReplayKind::kRecord) records[item.event] = i;
    if (item.kind >= ReplayKind::kHostWaitsEvent) continue;
    double& end = stream_end[static_cast<size_t>(item.stream)];
    EXPECT_GE(times.begin, std::max(end, times.issued + replay.launch_delay) - 1e-12);
    end = times.end;
    if (item.kind == ReplayKind::kKernel) {
      EXPECT_GE(times.end - times.begin, item.duration - 1e-11);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomReplays, ::testing::Range(0, 20));

// ---------------------------------------------------------------- ranks that meet

// A rank whose collectives meet those of others by name. Links are not used.
class Rank : public Script {
 public:
  explicit Rank(int streams) : Script(streams) {}
  size_t meet(int stream, double seconds, MeetingRole role, const std::string& name) {
    replay.flows.push_back({.latency = seconds});
    replay.meetings.push_back(name);
    return add({.kind = ReplayKind::kCollective,
                .stream = stream,
                .flow = static_cast<int>(replay.flows.size()) - 1,
                .role = role,
                .meeting = static_cast<int>(replay.meetings.size()) - 1});
  }
  size_t host_meets(double seconds, const std::string& name) {
    replay.meetings.push_back(name);
    return add({.kind = ReplayKind::kHostWork,
                .host = seconds,
                .role = MeetingRole::kAll,
                .meeting = static_cast<int>(replay.meetings.size()) - 1});
  }
};

TEST(ReplayOfRanks, AReceiveWaitsForTheMessage) {
  Rank first(1), second(1);
  first.kernel(0, 3);
  first.meet(0, 2, MeetingRole::kSends, "a");
  const size_t received = second.meet(0, 1, MeetingRole::kReceives, "a");
  const size_t after = second.kernel(0, 4);
  const auto results = run_replays({first.replay, second.replay});
  expect_times(results[1].items[received], 0, 5);
  expect_times(results[1].items[after], 5, 9);
  EXPECT_NEAR(results[0].seconds, 5, kTolerance);
  EXPECT_NEAR(results[1].seconds, 9, kTolerance);
}

TEST(ReplayOfRanks, AMessageThatIsThereCostsTheReceiversTimeAlone) {
  Rank first(1), second(1);
  first.meet(0, 2, MeetingRole::kSends, "a");
  second.kernel(0, 7);
  const size_t received = second.meet(0, 1, MeetingRole::kReceives, "a");
  expect_times(run_replays({first.replay, second.replay})[1].items[received], 7, 8);
}

TEST(ReplayOfRanks, ACollectiveOfAllEndsAfterTheLastHasBegun) {
  Rank first(1), second(1), third(1);
  first.kernel(0, 3);
  const size_t of_first = first.meet(0, 1, MeetingRole::kAll, "norm");
  const size_t of_second = second.meet(0, 1, MeetingRole::kAll, "norm");
  third.kernel(0, 2);
  third.meet(0, 1, MeetingRole::kAll, "norm");
  const auto results = run_replays({first.replay, second.replay, third.replay});
  expect_times(results[0].items[of_first], 3, 4);
  expect_times(results[1].items[of_second], 0, 3);
}

TEST(ReplayOfRanks, HostsWaitForOneAnother) {
  Rank first(1), second(1);
  first.host_work(5);
  first.host_meets(1, "facts");
  second.host_meets(1, "facts");
  const size_t after = second.kernel(0, 1);
  const ReplayResult result = run_replays({first.replay, second.replay})[1];
  expect_times(result.items[after], 6, 7);
  EXPECT_NEAR(result.host_waiting, 5, kTolerance);
}

// A pipeline of two stages and three micro-batches, whose stages take as long: the second begins one pass later.
TEST(ReplayOfRanks, StagesOfAPipelineOverlap) {
  Rank first(1), second(1);
  for (const std::string micro_batch : {"0", "1", "2"}) {
    first.kernel(0, 1);
    first.meet(0, 0, MeetingRole::kSends, micro_batch);
    second.meet(0, 0, MeetingRole::kReceives, micro_batch);
    second.kernel(0, 1);
  }
  EXPECT_NEAR(run_replays({first.replay, second.replay})[1].seconds, 4, kTolerance);
}

TEST(ReplayOfRanks, WhatNeverComesIsAnError) {
  Rank first(1), second(1);
  first.kernel(0, 1);
  second.meet(0, 1, MeetingRole::kReceives, "a");
  EXPECT_THROW(run_replays({first.replay, second.replay}), std::logic_error);
  second.replay.items[0].role = MeetingRole::kAll;
  EXPECT_THROW(run_replays({first.replay, second.replay}), std::logic_error);
  second.replay.items[0].meeting = 3;
  EXPECT_THROW(run_replays({second.replay}), std::invalid_argument);
  Rank third(1);
  third.add({.kind = ReplayKind::kKernel, .stream = 0, .role = MeetingRole::kSends, .meeting = 0});
  third.replay.meetings = {"a"};
  EXPECT_THROW(run_replays({third.replay}), std::invalid_argument);
}

}  // namespace
}  // namespace fsdp::planner::replay_test
