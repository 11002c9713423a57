#include "planner/memory/forecast.h"

#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include "planner/memory/pinned_replay.h"

namespace fsdp::planner {
namespace {

constexpr int64_t kMebibyte = int64_t{1} << 20;
// A rank of the program with LibTorch, before it makes a model.
constexpr int64_t kProcessBytes = 256 * kMebibyte;

bool crosses_hosts(const std::vector<int>& ranks, int per_host) {
  return std::any_of(ranks.begin(), ranks.end(), [&](int rank) { return rank / per_host != ranks.front() / per_host; });
}

// A group connects its communicator, and that of its twin, at the first collective. A group of one rank has none.
int64_t communicator_bytes(const Tape& tape, const Cluster& cluster) {
  std::set<std::pair<int, bool>> connected;  // group, twin
  for (const TapeCollective& collective : tape.collectives()) connected.emplace(collective.group, collective.twin);
  int64_t bytes = 0;
  for (const auto& [group, twin] : connected) {
    const std::vector<int>& ranks = tape.groups().at(static_cast<size_t>(group));
    if (ranks.size() < 2) continue;
    bytes +=
        crosses_hosts(ranks, cluster.ranks_per_host) ? cluster.communicator_across_hosts : cluster.communicator_on_host;
  }
  return bytes;
}

DeviceForecast forecast_device(const Tape& tape, const std::vector<size_t>& step_bounds, const Cluster& cluster) {
  DeviceForecast forecast;
  forecast.use = memory_use(tape, step_bounds, {Place::kDevice});
  forecast.capacity = cluster.device->memory;
  forecast.context = cluster.device->context;
  forecast.communicators = communicator_bytes(tape, cluster);
  const int64_t beside = forecast.context + forecast.communicators;
  forecast.replay = replay_device_memory(tape, {.capacity = std::max<int64_t>(0, forecast.capacity - beside)});
  const auto exhausted_at = forecast.replay.exhausted_at;
  if (exhausted_at) {
    forecast.replay = replay_device_memory(tape, {});
    forecast.replay.exhausted_at = exhausted_at;
  }
  forecast.total = forecast.replay.reserved.peak + beside;
  forecast.verdict = verdict_for(forecast.total, forecast.capacity);
  if (forecast.replay.retries > 0) forecast.verdict = std::max(forecast.verdict, Verdict::kTight);
  return forecast;
}

int64_t shared_at(const Tape& tape, const MemoryUse& use) {
  int64_t bytes = 0;
  for (const Lifetime& lifetime : use.lifetimes) {
    const bool exists = lifetime.born <= use.peak.entry && use.peak.entry < lifetime.freed;
    if (exists && tape.entries()[lifetime.born].place == Place::kSharedHost) bytes += lifetime.bytes;
  }
  return bytes;
}

HostForecast forecast_host(const Tape& tape, const std::vector<size_t>& step_bounds, const Cluster& cluster,
                           std::optional<int64_t> capacity) {
  HostForecast forecast;
  forecast.use = memory_use(tape, step_bounds, {Place::kHost, Place::kSharedHost});
  forecast.shared = shared_at(tape, forecast.use);
  forecast.pinned = replay_pinned_memory(tape);
  forecast.process = kProcessBytes;
  forecast.per_host = cluster.ranks_per_host * (forecast.process + forecast.pinned + forecast.use.peak.bytes);
  forecast.capacity = capacity;
  if (capacity) forecast.verdict = verdict_for(forecast.per_host, *capacity);
  return forecast;
}

}  // namespace

const char* to_string(Verdict verdict) {
  constexpr std::array kNames = {"fits", "tight", "does not fit", "unknown"};
  return kNames.at(static_cast<size_t>(verdict));
}

Verdict verdict_for(int64_t total, int64_t capacity) {
  if (total > capacity) return Verdict::kDoesNotFit;
  const double with_error = static_cast<double>(total) * (1 + kMemoryError);
  return with_error <= static_cast<double>(capacity) ? Verdict::kFits : Verdict::kTight;
}

Verdict MemoryForecast::verdict() const {
  if (!device) return host.verdict;
  if (host.verdict == Verdict::kUnknown) return device->verdict;
  return std::max(device->verdict, host.verdict);
}

MemoryForecast forecast_memory(const Tape& tape, const std::vector<size_t>& step_bounds, const Cluster& cluster,
                               std::optional<int64_t> host_memory) {
  MemoryForecast forecast;
  if (cluster.device) forecast.device = forecast_device(tape, step_bounds, cluster);
  forecast.host = forecast_host(tape, step_bounds, cluster, host_memory);
  return forecast;
}

}  // namespace fsdp::planner
