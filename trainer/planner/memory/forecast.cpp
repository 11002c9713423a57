#include "planner/memory/forecast.h"

#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include "planner/memory/pinned_replay.h"

namespace fsdp::planner {
namespace {

constexpr int64_t kMebibyte = int64_t{1} << 20;
// A rank of the program with LibTorch for CPUs, beside its tensors: 57 MiB before it makes a model, most of them for
// LibTorch's table of operators, and 8 to 17 MiB more after three steps (docs/planning.md). Pages of files are not in
// it: ranks share them, and the system may drop them.
constexpr int64_t kProcessOnCpu = 72 * kMebibyte;
// A guess, for a rank with CUDA's libraries.
constexpr int64_t kProcessWithDevice = 256 * kMebibyte;
// The program keeps memory that tensors have left for later ones (trainer::keep_freed_memory), not all of which fit
// there. Of the peak of tensors, this part was held in addition, at most, in eight runs of small models
// (docs/planning.md).
constexpr double kMostHoles = 0.6;

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

HostForecast forecast_host(const Tape& tape, const std::vector<size_t>& step_bounds, const Cluster& cluster,
                           std::optional<int64_t> capacity) {
  HostForecast forecast;
  forecast.use = memory_use(tape, step_bounds, {Place::kHost, Place::kSharedHost});
  forecast.shared = memory_use(tape, step_bounds, {Place::kSharedHost}).peak.bytes;
  forecast.pinned = replay_pinned_memory(tape);
  forecast.process = cluster.device ? kProcessWithDevice : kProcessOnCpu;
  forecast.per_host = cluster.ranks_per_host * (forecast.process + forecast.pinned + forecast.use.peak.bytes);
  forecast.capacity = capacity;
  const auto holes = static_cast<int64_t>(kMostHoles * static_cast<double>(forecast.use.peak.bytes));
  forecast.with_holes = forecast.per_host + cluster.ranks_per_host * holes;
  if (!capacity) return forecast;
  forecast.verdict = verdict_for(forecast.per_host, *capacity);
  if (forecast.with_holes > *capacity) forecast.verdict = std::max(forecast.verdict, Verdict::kTight);
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
