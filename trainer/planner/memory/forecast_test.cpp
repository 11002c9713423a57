// Verdicts, communicators and pinned memory of hand-made tapes.
#include "planner/memory/forecast.h"

#include <gtest/gtest.h>

#include "planner/memory/pinned_replay.h"

namespace fsdp::planner::forecast_test {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

TapeEntry born(int64_t id, int64_t bytes, Place place) {
  return {.kind = TapeKind::kAllocation, .place = place, .stream = 0, .id = id, .bytes = bytes};
}
TapeEntry freed(int64_t id) { return {.kind = TapeKind::kFree, .id = id}; }

Cluster cluster_of(int hosts, int64_t memory) {
  DeviceProfile device;
  device.memory = memory;
  device.context = 10 * kMiB;
  return {.hosts = hosts, .ranks_per_host = 2, .device = device};
}

// A step that needs 100 MiB of a device.
Tape of_100_mib() { return Tape({born(0, 100 * kMiB, Place::kDevice), freed(0)}, {}); }

Verdict verdict_with(int64_t capacity) {
  return forecast_memory(of_100_mib(), {0, 2}, cluster_of(1, capacity), std::nullopt).verdict();
}

TEST(Verdict, HasAMarginOfThreePercent) {
  EXPECT_EQ(verdict_for(100, 103), Verdict::kFits);
  EXPECT_EQ(verdict_for(100, 102), Verdict::kTight);
  EXPECT_EQ(verdict_for(100, 100), Verdict::kTight);
  EXPECT_EQ(verdict_for(100, 99), Verdict::kDoesNotFit);
}

TEST(Forecast, TheContextCountsBesideTheSegments) {
  EXPECT_EQ(verdict_with(114 * kMiB), Verdict::kFits);
  EXPECT_EQ(verdict_with(110 * kMiB), Verdict::kTight);
  EXPECT_EQ(verdict_with(109 * kMiB), Verdict::kDoesNotFit);
}

TEST(Forecast, ARunThatDoesNotFitSaysHowMuchItNeeds) {
  const MemoryForecast forecast = forecast_memory(of_100_mib(), {0, 2}, cluster_of(1, 50 * kMiB), std::nullopt);
  EXPECT_EQ(forecast.device->total, 110 * kMiB);
  EXPECT_EQ(forecast.device->replay.exhausted_at, 0);
}

// 30 and then 50 MiB, of which a device that has 60 must give the 30 back first.
TEST(Forecast, ARunThatMustGiveSegmentsBackIsTight) {
  const Tape tape({born(0, 30 * kMiB, Place::kDevice), freed(0), born(1, 50 * kMiB, Place::kDevice), freed(1)}, {});
  EXPECT_EQ(forecast_memory(tape, {0, 4}, cluster_of(1, 70 * kMiB), std::nullopt).verdict(), Verdict::kTight);
  EXPECT_EQ(forecast_memory(tape, {0, 4}, cluster_of(1, 95 * kMiB), std::nullopt).verdict(), Verdict::kFits);
}

TapeCollective of_group(int group, bool twin = false) {
  TapeCollective collective;
  collective.group = group;
  collective.twin = twin;
  return collective;
}

int64_t communicators(const std::vector<std::vector<int>>& groups, const std::vector<TapeCollective>& collectives) {
  Tape tape;
  for (const std::vector<int>& group : groups) tape.add_group(group);
  for (const TapeCollective& collective : collectives) tape.issued(collective, Place::kDevice, 0);
  return forecast_memory(tape, {0, 0}, cluster_of(2, kMiB), std::nullopt).device->communicators;
}

TEST(Forecast, GroupsThatCommunicateTakeMemory) {
  const std::vector<std::vector<int>> groups = {{0, 1, 2, 3}, {0, 1}, {0}};
  EXPECT_EQ(communicators(groups, {}), 0);
  EXPECT_EQ(communicators(groups, {of_group(2)}), 0);
  const int64_t on_host = communicators(groups, {of_group(1)});
  EXPECT_GT(on_host, 0);
  EXPECT_EQ(communicators(groups, {of_group(0)}), 2 * on_host);
  EXPECT_EQ(communicators(groups, {of_group(1), of_group(1), of_group(1, true)}), 2 * on_host);
}

TEST(Forecast, AHostHasAllItsRanks) {
  const Tape tape({born(0, 7 * kMiB, Place::kHost), freed(0), born(1, 3 * kMiB, Place::kPinnedHost), freed(1)}, {});
  const Cluster cluster{.hosts = 2, .ranks_per_host = 4, .device = std::nullopt};
  const MemoryForecast unknown = forecast_memory(tape, {0, 4}, cluster, std::nullopt);
  EXPECT_EQ(unknown.verdict(), Verdict::kUnknown);
  EXPECT_EQ(unknown.host.per_host, 4 * ((7 + 4) * kMiB + unknown.host.process));
  EXPECT_EQ(forecast_memory(tape, {0, 4}, cluster, unknown.host.per_host).verdict(), Verdict::kTight);
  EXPECT_EQ(forecast_memory(tape, {0, 4}, cluster, unknown.host.per_host - 1).verdict(), Verdict::kDoesNotFit);
}

TEST(Forecast, AHostThatHasNoRoomForHolesIsTight) {
  const Tape tape({born(0, 100 * kMiB, Place::kHost), freed(0)}, {});
  const Cluster cluster{.hosts = 1, .ranks_per_host = 2, .device = std::nullopt};
  const auto verdict = [&](int64_t capacity) { return forecast_memory(tape, {0, 2}, cluster, capacity).verdict(); };
  const HostForecast host = forecast_memory(tape, {0, 2}, cluster, std::nullopt).host;
  EXPECT_EQ(host.with_holes, host.per_host + 2 * 60 * kMiB);
  EXPECT_EQ(verdict(host.with_holes), Verdict::kFits);
  EXPECT_EQ(verdict(host.with_holes - 1), Verdict::kTight);
  EXPECT_EQ(verdict(host.per_host), Verdict::kTight);
  EXPECT_EQ(verdict(host.per_host - 1), Verdict::kDoesNotFit);
}

TEST(Forecast, SharedMemoryIsPartOfTheHosts) {
  const Tape tape({born(0, 7 * kMiB, Place::kHost), born(1, 5 * kMiB, Place::kSharedHost), freed(0), freed(1)}, {});
  const Cluster cluster{.hosts = 1, .ranks_per_host = 4, .device = std::nullopt};
  const MemoryForecast forecast = forecast_memory(tape, {0, 4}, cluster, std::nullopt);
  EXPECT_EQ(forecast.host.shared, 5 * kMiB);
  EXPECT_EQ(forecast.host.per_host, 4 * (12 * kMiB + forecast.host.process));
}

TEST(Forecast, TheWorseOfDeviceAndHostCounts) {
  const MemoryForecast forecast = forecast_memory(of_100_mib(), {0, 2}, cluster_of(1, 200 * kMiB), kMiB);
  EXPECT_EQ(forecast.device->verdict, Verdict::kFits);
  EXPECT_EQ(forecast.verdict(), Verdict::kDoesNotFit);
}

TEST(PinnedReplay, BlocksArePowersOfTwoAndAreKept) {
  const auto pinned = [](int64_t id, int64_t bytes) { return born(id, bytes, Place::kPinnedHost); };
  EXPECT_EQ(replay_pinned_memory(Tape({pinned(0, 5), freed(0), pinned(1, 7), pinned(2, 8)}, {})), 16);
  EXPECT_EQ(replay_pinned_memory(Tape({pinned(0, 5), freed(0), pinned(1, 4)}, {})), 12);
  EXPECT_EQ(replay_pinned_memory(Tape({pinned(0, 0), born(1, 9, Place::kHost)}, {})), 0);
}

}  // namespace
}  // namespace fsdp::planner::forecast_test
