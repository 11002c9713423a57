#include "planner/pricing/priced_tape.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "planner/pricing/collective_price.h"
#include "planner/pricing/fused_kernels.h"
#include "planner/pricing/host_price.h"
#include "planner/pricing/kernel_price.h"
#include "planner/time/collective_flow.h"
#include "planner/time/kernel_time.h"

namespace fsdp::planner {
namespace {

// Of a retry of the allocator: cudaFree waits for the device, and each segment costs a cudaFree. Guesses.
constexpr double kRetrySeconds = 1e-3;
constexpr double kRetrySecondsOfSegment = 0.3e-3;
// An exchange of bytes between all hosts' processes: each sends two messages to each other one. A message between two
// takes the sender, and the receiver after it has arrived, as long as the first part. Guesses.
constexpr double kHostExchange = 100e-6;
constexpr double kHostExchangeWithPeer = 20e-6;

// Points of the tape, collectives, communicators and marks are events with numbers of their own.
constexpr int64_t kMarkEvent = -1;
int64_t event_of_point(int64_t point) { return 2 * point; }
int64_t event_of_collective(int64_t collective) { return 2 * collective + 1; }
int64_t event_of_communicator(const TapeCollective& collective) {
  return kMarkEvent - 1 - (2 * int64_t{collective.group} + (collective.twin ? 1 : 0));
}

// Tells the phase of each entry.
class PhaseSequence {
 public:
  PhaseSequence(const std::vector<TapeEntry>& entries, const std::vector<size_t>& bounds) : entries_(entries) {
    for (size_t step = 0; step + 1 < bounds.size(); ++step) {
      size_t end = bounds[step];
      for (size_t i = bounds[step]; i < bounds[step + 1]; ++i) {
        if (entries[i].backward) end = i + 1;
      }
      backward_ends_.push_back(end);
    }
  }

  StepPhase at(size_t entry, size_t step) const {
    if (entries_[entry].backward) return StepPhase::kBackward;
    return entry < backward_ends_.at(step) ? StepPhase::kForward : StepPhase::kUpdate;
  }

 private:
  const std::vector<TapeEntry>& entries_;
  std::vector<size_t> backward_ends_;  // by step
};

double host_exchange_seconds(const Tape& tape, size_t collective) {
  if (tape.collectives().at(collective).kind == comm::CollectiveKind::kMessage) return kHostExchange;
  const auto group = static_cast<size_t>(tape.collectives().at(collective).group);
  const double peers = static_cast<double>(tape.groups().at(group).size()) - 1;
  return peers > 0 ? kHostExchange + peers * kHostExchangeWithPeer : 0;
}

class TapePricer {
 public:
  TapePricer(const Tape& tape, const Cluster& cluster, const KernelOptions& options)
      : tape_(tape), cluster_(cluster), options_(options), fused_(tape, options.stack.fusion) {
    stream_of(kComputeStream);
    priced_.replay.links = node_links(cluster.links);
    priced_.replay.flows.resize(tape.collectives().size());
    if (!computes_on_host()) return;
    priced_.replay.host_computes = true;
    priced_.replay.launch_delay = 0;
  }

  void mark_step(size_t entry) {
    priced_.step_marks.push_back(mark(entry));
    phase_.reset();
  }
  void enter(size_t entry, size_t step, StepPhase phase) {
    if (phase_ == phase) return;
    phase_ = phase;
    priced_.phase_marks.push_back({.item = mark(entry), .step = static_cast<int>(step), .phase = phase});
  }
  void retry(const AllocatorRetry& retry);
  void add(size_t entry);

  PricedTape finish() {
    priced_.replay.streams = static_cast<int>(priced_.streams.size());
    return std::move(priced_);
  }

 private:
  int stream_of(int tape_stream);
  size_t add_item(size_t entry, ReplayItem item, const KernelPrice& price = {});
  size_t mark(size_t entry) {
    return add_item(entry, {.kind = ReplayKind::kRecord, .stream = stream_of(kComputeStream), .event = kMarkEvent});
  }

  bool computes_on_host() const { return !cluster_.device; }
  double host_of_kernel() const { return options_.stack.host_per_kernel.value_or(cluster_.host_per_kernel); }
  double host_of_collective() const { return options_.stack.host_per_collective.value_or(host_of_kernel()); }
  bool is_fused_into_another(size_t index) const;
  void add_kernel(size_t index);
  void add_work(size_t index, int stream, KernelPrice price);
  void copy_gather(size_t index);
  bool gathers_parameters(const TapeCollective& collective) const;
  void add_collective(size_t index);
  void add_exchange_of_hosts(size_t index);
  void add_wait(size_t index);
  void add_host_wait_for_stream(size_t index);
  // Gives the item of a collective its meeting with other ranks.
  ReplayItem meeting(ReplayItem item, size_t collective);
  void record_collective(size_t entry, int stream, int64_t collective) {
    add_item(entry, {.kind = ReplayKind::kRecord, .stream = stream, .event = event_of_collective(collective)});
  }

  const Tape& tape_;
  const Cluster& cluster_;
  const KernelOptions& options_;
  FusedKernels fused_;
  std::set<int64_t> copied_;  // gathers
  PricedTape priced_;
  std::map<int, int> stream_indices_;     // by the tape's number
  std::map<int, int64_t> converted_;      // by stream: the collective whose sum the next kernel converts
  std::map<int64_t, int> communicators_;  // by event: the stream of the latest collective
  std::optional<StepPhase> phase_;
};

int TapePricer::stream_of(int tape_stream) {
  const auto [found, is_new] = stream_indices_.emplace(tape_stream, static_cast<int>(priced_.streams.size()));
  if (is_new) priced_.streams.push_back(tape_stream);
  return found->second;
}

size_t TapePricer::add_item(size_t entry, ReplayItem item, const KernelPrice& price) {
  priced_.replay.items.push_back(item);
  priced_.entries.push_back(entry);
  priced_.kinds.push_back(price.kind);
  priced_.least.push_back(price.least);
  return priced_.entries.size() - 1;
}

void TapePricer::retry(const AllocatorRetry& retry) {
  const double seconds = kRetrySeconds + kRetrySecondsOfSegment * static_cast<double>(retry.segments);
  add_item(retry.entry, {.kind = ReplayKind::kHostWaitsStream, .stream = -1});
  add_item(retry.entry, {.kind = ReplayKind::kHostWork, .host = seconds});
}

void TapePricer::add(size_t index) {
  const TapeEntry& entry = tape_.entries()[index];
  switch (entry.kind) {
    case TapeKind::kKernel:
      return add_kernel(index);
    case TapeKind::kCollective:
      return add_collective(index);
    case TapeKind::kWait:
      return add_wait(index);
    case TapeKind::kHostWaitsStream:
      return add_host_wait_for_stream(index);
    case TapeKind::kRecord:
      add_item(index,
               {.kind = ReplayKind::kRecord, .stream = stream_of(entry.stream), .event = event_of_point(entry.id)});
      return;
    case TapeKind::kBlock:
      add_item(index,
               {.kind = ReplayKind::kStreamWait, .stream = stream_of(entry.stream), .event = event_of_point(entry.id)});
      return;
    case TapeKind::kHostWaitsEvent:
      add_item(index, {.kind = ReplayKind::kHostWaitsEvent, .event = event_of_point(entry.id)});
      return;
    case TapeKind::kAllocation:
    case TapeKind::kFree:
      return;
  }
}

bool TapePricer::is_fused_into_another(size_t index) const {
  return fused_.bytes(index) == 0 && tape_.entries()[index].bytes > 0;
}

void TapePricer::add_kernel(size_t index) {
  TapeEntry entry = tape_.entries()[index];
  if (is_fused_into_another(index)) return;
  entry.bytes = fused_.bytes(index);
  if (computes_on_host()) {
    add_work(index, stream_of(kComputeStream), price_on_host(tape_, entry, *cluster_.host_speed, options_.dtype));
    return;
  }
  if (entry.place != Place::kDevice) {
    add_item(index, {.kind = ReplayKind::kHostWork, .host = host_kernel_seconds(entry, cluster_)});
    return;
  }
  const int stream = stream_of(entry.stream);
  add_work(index, stream, price_kernel(tape_, entry, cluster_, options_));
  const auto converted = converted_.find(stream);
  if (converted == converted_.end()) return;
  record_collective(index, stream, converted->second);
  converted_.erase(converted);
}

void TapePricer::add_work(size_t index, int stream, KernelPrice price) {
  const ReplayItem item{
      .memory_bound = price.memory_bound(), .stream = stream, .host = host_of_kernel(), .duration = price.seconds};
  if (phase_ == StepPhase::kUpdate) price.kind = WorkKind::kOptimizer;
  add_item(index, item, price);
}

ReplayItem TapePricer::meeting(ReplayItem item, size_t collective) {
  const Meeting& meeting = tape_.collectives()[collective].meeting;
  if (meeting.role == MeetingRole::kNone) return item;
  item.role = meeting.role;
  item.meeting = static_cast<int>(priced_.replay.meetings.size());
  priced_.replay.meetings.push_back(meeting.name);
  return item;
}

// On CPUs, the time of an exchange counts at its issue: ranks use all processors, so that it cannot run beside
// computation. The time of a receive by hosts counts at the wait for it, since the message is on its way until then.
void TapePricer::add_exchange_of_hosts(size_t index) {
  const auto collective = static_cast<size_t>(tape_.entries()[index].id);
  const bool receives = tape_.collectives()[collective].meeting.role == MeetingRole::kReceives;
  if (receives && tape_.entries()[index].kind != TapeKind::kWait) return;
  if (!computes_on_host()) {
    add_item(index,
             meeting({.kind = ReplayKind::kHostWork, .host = host_exchange_seconds(tape_, collective)}, collective));
    return;
  }
  priced_.replay.flows[collective].latency = exchange_seconds(tape_, collective, *cluster_.host_speed);
  add_item(index, meeting({.kind = ReplayKind::kCollective,
                           .stream = stream_of(kComputeStream),
                           .flow = static_cast<int>(collective)},
                          collective));
}

void TapePricer::add_collective(size_t index) {
  const TapeEntry& entry = tape_.entries()[index];
  const auto collective = static_cast<size_t>(entry.id);
  if (entry.place != Place::kDevice) return add_exchange_of_hosts(index);
  const int stream = stream_of(entry.stream);
  const int64_t communicator = event_of_communicator(tape_.collectives()[collective]);
  const auto [latest, is_first] = communicators_.emplace(communicator, stream);
  // NCCL runs the collectives of one communicator in the order in which they are issued, whatever their streams.
  if (!is_first && latest->second != stream) {
    add_item(index, {.kind = ReplayKind::kStreamWait, .stream = stream, .event = communicator});
  }
  latest->second = stream;
  priced_.replay.flows[collective] =
      collective_flow(price_collective(tape_, collective, cluster_, options_.stack), cluster_.links);
  add_item(index, meeting({.kind = ReplayKind::kCollective,
                           .stream = stream,
                           .flow = static_cast<int>(collective),
                           .host = host_of_collective()},
                          collective));
  add_item(index, {.kind = ReplayKind::kRecord, .stream = stream, .event = communicator});
  if (tape_.collectives()[collective].converts) {
    converted_[stream] = entry.id;
  } else {
    record_collective(index, stream, entry.id);
  }
}

void TapePricer::add_wait(size_t index) {
  const TapeEntry& entry = tape_.entries()[index];
  if (entry.place != Place::kDevice) {  // the host has waited when it exchanged, but for messages
    const Meeting& meeting = tape_.collectives()[static_cast<size_t>(entry.id)].meeting;
    if (meeting.role == MeetingRole::kReceives) add_exchange_of_hosts(index);
    return;
  }
  add_item(
      index,
      {.kind = ReplayKind::kStreamWait, .stream = stream_of(entry.stream), .event = event_of_collective(entry.id)});
  if (options_.stack.copies_gathers) copy_gather(index);
}

// Data-parallel ranks are no neighbours if ranks split weights.
bool TapePricer::gathers_parameters(const TapeCollective& collective) const {
  if (collective.kind != comm::CollectiveKind::kAllGather) return false;
  const std::vector<int>& ranks = tape_.groups().at(static_cast<size_t>(collective.group));
  return !options_.splits_weights || ranks.size() < 2 || ranks[1] - ranks[0] > 1;
}

// The first stream that waits for gathered parameters copies them out of what was sent.
void TapePricer::copy_gather(size_t index) {
  const TapeEntry& entry = tape_.entries()[index];
  const TapeCollective& collective = tape_.collectives().at(static_cast<size_t>(entry.id));
  if (!gathers_parameters(collective) || !copied_.insert(entry.id).second) return;
  const double bytes = 2 * static_cast<double>(collective_bytes(collective, options_.stack));
  const KernelPrice price{.seconds = memory_seconds(cluster_.speed, bytes),
                          .least = bytes / cluster_.speed.memory_bandwidth,
                          .kind = WorkKind::kMemoryBound};
  add_item(
      index,
      {.memory_bound = true, .stream = stream_of(entry.stream), .host = host_of_kernel(), .duration = price.seconds},
      price);
}

// A stream without work has nothing to wait for.
void TapePricer::add_host_wait_for_stream(size_t index) {
  const auto found = stream_indices_.find(tape_.entries()[index].stream);
  if (found == stream_indices_.end()) return;
  add_item(index, {.kind = ReplayKind::kHostWaitsStream, .stream = found->second});
}

bool is_work(const TapeEntry& entry) { return entry.kind == TapeKind::kKernel || entry.kind == TapeKind::kCollective; }

}  // namespace

size_t PricedTape::first_item_of(size_t entry) const {
  return static_cast<size_t>(std::lower_bound(entries.begin(), entries.end(), entry) - entries.begin());
}

PricedTape price_tape(const Tape& tape, const std::vector<size_t>& step_bounds, const Cluster& cluster,
                      const std::vector<AllocatorRetry>& retries, const KernelOptions& options) {
  TORCH_INTERNAL_ASSERT(!step_bounds.empty());
  const PhaseSequence phases(tape.entries(), step_bounds);
  TapePricer pricer(tape, cluster, options);
  auto retry = std::lower_bound(retries.begin(), retries.end(), step_bounds.front(),
                                [](const AllocatorRetry& one, size_t entry) { return one.entry < entry; });
  for (size_t step = 0; step + 1 < step_bounds.size(); ++step) {
    pricer.mark_step(step_bounds[step]);
    for (size_t i = step_bounds[step]; i < step_bounds[step + 1]; ++i) {
      if (is_work(tape.entries()[i])) pricer.enter(i, step, phases.at(i, step));
      for (; retry != retries.end() && retry->entry == i; ++retry) pricer.retry(*retry);
      pricer.add(i);
    }
  }
  pricer.mark_step(step_bounds.back());
  return pricer.finish();
}

}  // namespace fsdp::planner
