#include "planner/time/replay.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>

namespace fsdp::planner {
namespace {

constexpr size_t kNoItem = static_cast<size_t>(-1);
constexpr double kNever = std::numeric_limits<double>::infinity();
// Rests of work below this are rounding, in seconds.
constexpr double kRoundingRest = 1e-12;

void require_valid(bool condition, size_t item, const char* complaint) {
  if (!condition) throw std::invalid_argument("item " + std::to_string(item) + " of the replay " + complaint);
}

bool is_on_device(ReplayKind kind) {
  return kind == ReplayKind::kKernel || kind == ReplayKind::kCollective || kind == ReplayKind::kRecord ||
         kind == ReplayKind::kStreamWait;
}

void check_item(const Replay& replay, size_t index) {
  const ReplayItem& item = replay.items[index];
  require_valid(item.host >= 0 && item.duration >= 0, index, "has a negative time");
  const int lowest = item.kind == ReplayKind::kHostWaitsStream ? -1 : 0;
  if (is_on_device(item.kind) || item.kind == ReplayKind::kHostWaitsStream) {
    require_valid(item.stream >= lowest && item.stream < replay.streams, index, "names no stream");
  }
  if (item.kind == ReplayKind::kCollective) {
    require_valid(item.flow >= 0 && static_cast<size_t>(item.flow) < replay.flows.size(), index, "names no flow");
  }
  if (item.role == MeetingRole::kNone) return;
  require_valid(item.meeting >= 0 && static_cast<size_t>(item.meeting) < replay.meetings.size(), index,
                "names no meeting");
  require_valid(item.kind == ReplayKind::kCollective || item.kind == ReplayKind::kHostWork, index,
                "cannot meet other ranks");
}

void check_flow(const Replay& replay, const ReplayFlow& flow) {
  bool valid = flow.latency >= 0 && flow.transfer >= 0;
  valid = valid && flow.arithmetic_share >= 0 && flow.arithmetic_share < 1;
  valid = valid && flow.memory_share >= 0 && flow.memory_share < 1;
  for (const LinkUse& use : flow.uses) {
    const bool known = use.link >= 0 && static_cast<size_t>(use.link) < replay.links.size();
    valid = valid && known && use.bytes >= 0 && replay.links[static_cast<size_t>(use.link)] > 0;
  }
  if (!valid) throw std::invalid_argument("a flow of the replay has a negative time, a share of 1 or an unknown link");
}

// The items that ranks have sent, or begun, so far.
class Meetings {
 public:
  explicit Meetings(size_t ranks) : ranks_(ranks) {}

  void come(const std::string& name) { ++come_[name]; }
  bool is_open(MeetingRole role, const std::string& name) const {
    const auto found = come_.find(name);
    const size_t come = found == come_.end() ? 0 : found->second;
    return role == MeetingRole::kAll ? come == ranks_ : come > 0;
  }

 private:
  size_t ranks_;
  std::unordered_map<std::string, size_t> come_;
};

// The part of a stream that changes.
struct StreamProgress {
  std::vector<size_t> queue;  // items issued so far
  size_t head = 0;
  size_t expected = 0;  // items that it will have in all
  bool has_collectives = false;
  bool running = false;
  double latency = 0;   // left of the running item
  double duration = 0;  // left, at full speed
  double rate = 1;      // of duration per second, until the next moment
  double free_since = 0;

  bool has_head() const { return head < queue.size(); }
};

// One rank. All ranks are taken from moment to moment together.
class ReplayRun {
 public:
  ReplayRun(const Replay& replay, Meetings& meetings);

  // Does all that can happen at this moment. Returns whether anything did.
  bool take_further();
  // Returns when the next thing happens; kNever if this rank waits for others, or is finished.
  double next_moment();
  void advance_to(double moment);
  [[nodiscard]] bool is_finished() const;
  ReplayResult take_result();

 private:
  const ReplayItem& item(size_t index) const { return replay_.items[index]; }
  size_t head(const StreamProgress& stream) const { return stream.queue[stream.head]; }
  double visible(size_t index) const { return result_.items[index].issued + replay_.launch_delay; }

  bool take_host_further();
  void issue(size_t index);
  bool host_waits_for(ReplayKind kind) const;
  bool host_may_go_on() const;
  bool take_stream_further(StreamProgress& stream);
  void begin(StreamProgress& stream);
  void end(StreamProgress& stream);

  void come(const ReplayItem& item) { meetings_.come(replay_.meetings[static_cast<size_t>(item.meeting)]); }
  bool waits_for_others(const ReplayItem& item) const;

  void set_rates();
  double transfer_rate(const ReplayFlow& flow) const;
  double alone(const ReplayFlow& flow) const;
  StreamState state(const StreamProgress& stream) const;

  const Replay& replay_;
  Meetings& meetings_;
  ReplayResult result_;
  double now_ = 0;
  std::vector<bool> done_;
  std::vector<StreamProgress> streams_;
  // By item: the record that a wait is for.
  std::vector<size_t> awaited_;
  std::unordered_map<int64_t, size_t> latest_record_;
  size_t host_item_ = 0;
  double host_ready_ = 0;  // the end of the host time of host_item_
  bool host_waits_ = false;
  std::vector<int> users_;  // flows that move data, by link
};

ReplayRun::ReplayRun(const Replay& replay, Meetings& meetings)
    : replay_(replay),
      meetings_(meetings),
      done_(replay.items.size()),
      streams_(static_cast<size_t>(replay.streams)),
      awaited_(replay.items.size(), kNoItem),
      users_(replay.links.size()) {
  result_.items.resize(replay.items.size());
  result_.streams.resize(streams_.size());
  for (const ReplayFlow& flow : replay.flows) check_flow(replay, flow);
  for (size_t i = 0; i < replay.items.size(); ++i) {
    check_item(replay, i);
    result_.host_busy += item(i).host;
    if (!is_on_device(item(i).kind)) continue;
    StreamProgress& stream = streams_[static_cast<size_t>(item(i).stream)];
    ++stream.expected;
    if (item(i).kind == ReplayKind::kCollective) stream.has_collectives = true;
  }
  if (!replay.items.empty()) host_ready_ = item(0).host;
}

// Whether something happened at this moment.
bool ReplayRun::take_host_further() {
  if (host_item_ == replay_.items.size() || now_ < host_ready_) return false;
  ReplayedItem& times = result_.items[host_item_];
  const ReplayKind kind = item(host_item_).kind;
  if (!host_waits_) issue(host_item_);
  if (host_waits_for(kind)) {
    host_waits_ = !host_may_go_on();
    if (host_waits_) return false;
    times.end = now_;
    done_[host_item_] = true;
    result_.host_waiting += times.end - times.begin;
  }
  if (++host_item_ < replay_.items.size()) host_ready_ = now_ + item(host_item_).host;
  return true;
}

void ReplayRun::issue(size_t index) {
  const ReplayItem& issued = item(index);
  result_.items[index].issued = result_.items[index].begin = now_;
  if (issued.kind == ReplayKind::kRecord) latest_record_[issued.event] = index;
  if (issued.kind == ReplayKind::kStreamWait || issued.kind == ReplayKind::kHostWaitsEvent) {
    const auto record = latest_record_.find(issued.event);
    if (record != latest_record_.end()) awaited_[index] = record->second;
  }
  if (is_on_device(issued.kind)) streams_[static_cast<size_t>(issued.stream)].queue.push_back(index);
  const bool comes = issued.role == MeetingRole::kAll || issued.role == MeetingRole::kSends;
  if (issued.kind == ReplayKind::kHostWork && comes) come(issued);
}

bool ReplayRun::waits_for_others(const ReplayItem& item) const {
  if (item.role != MeetingRole::kReceives && item.role != MeetingRole::kAll) return false;
  return !meetings_.is_open(item.role, replay_.meetings[static_cast<size_t>(item.meeting)]);
}

bool ReplayRun::host_waits_for(ReplayKind kind) const {
  const bool is_work = kind == ReplayKind::kKernel || kind == ReplayKind::kCollective;
  return !is_on_device(kind) || (replay_.host_computes && is_work);
}

bool ReplayRun::host_may_go_on() const {
  const ReplayItem& waiting = item(host_item_);
  if (is_on_device(waiting.kind)) return done_[host_item_];
  if (waiting.kind == ReplayKind::kHostWaitsEvent) {
    return awaited_[host_item_] == kNoItem || done_[awaited_[host_item_]];
  }
  if (waiting.kind == ReplayKind::kHostWork) return !waits_for_others(waiting);
  if (waiting.stream >= 0) return !streams_[static_cast<size_t>(waiting.stream)].has_head();
  return std::none_of(streams_.begin(), streams_.end(), [](const StreamProgress& stream) { return stream.has_head(); });
}

// Whether something happened at this moment.
bool ReplayRun::take_stream_further(StreamProgress& stream) {
  if (!stream.has_head() || visible(head(stream)) > now_) return false;
  const size_t index = head(stream);
  const ReplayKind kind = item(index).kind;
  if (kind == ReplayKind::kKernel || kind == ReplayKind::kCollective) {
    if (!stream.running) begin(stream);
    if (stream.latency > 0 || stream.duration > 0 || waits_for_others(item(index))) return false;
  } else if (kind == ReplayKind::kStreamWait && awaited_[index] != kNoItem && !done_[awaited_[index]]) {
    return false;
  }
  end(stream);
  return true;
}

void ReplayRun::begin(StreamProgress& stream) {
  const ReplayItem& started = item(head(stream));
  stream.running = true;
  stream.latency = 0;
  stream.duration = started.duration;
  if (started.kind == ReplayKind::kCollective) {
    const ReplayFlow& flow = replay_.flows[static_cast<size_t>(started.flow)];
    stream.latency = flow.latency;
    stream.duration = alone(flow);
    if (started.role == MeetingRole::kAll) come(started);
  }
}

void ReplayRun::end(StreamProgress& stream) {
  const size_t index = head(stream);
  result_.items[index].begin = std::max(stream.free_since, visible(index));
  result_.items[index].end = stream.free_since = now_;
  done_[index] = true;
  stream.running = false;
  ++stream.head;
  if (item(index).role == MeetingRole::kSends) come(item(index));
}

// The time of the data if no other flow uses its links.
double ReplayRun::alone(const ReplayFlow& flow) const {
  double seconds = flow.transfer;
  for (const LinkUse& use : flow.uses) {
    seconds = std::max(seconds, use.bytes / replay_.links[static_cast<size_t>(use.link)]);
  }
  return seconds;
}

// Progress per second, in seconds of the time alone.
double ReplayRun::transfer_rate(const ReplayFlow& flow) const {
  double rate = 1;
  for (const LinkUse& use : flow.uses) {
    if (use.bytes <= 0) continue;
    const auto link = static_cast<size_t>(use.link);
    rate = std::min(rate, replay_.links[link] / std::max(users_[link], 1) * alone(flow) / use.bytes);
  }
  return rate;
}

void ReplayRun::set_rates() {
  std::fill(users_.begin(), users_.end(), 0);
  double arithmetic = 1;
  double memory = 1;
  const auto flow_of = [&](const StreamProgress& stream) -> const ReplayFlow* {
    if (!stream.running || item(head(stream)).kind != ReplayKind::kCollective) return nullptr;
    return &replay_.flows[static_cast<size_t>(item(head(stream)).flow)];
  };
  for (const StreamProgress& stream : streams_) {
    const ReplayFlow* flow = flow_of(stream);
    if (flow == nullptr) continue;
    arithmetic *= 1 - flow->arithmetic_share;
    memory *= 1 - flow->memory_share;
    if (stream.latency > 0 || stream.duration <= 0) continue;  // no data move yet, or any more
    for (const LinkUse& use : flow->uses) users_[static_cast<size_t>(use.link)] += use.bytes > 0 ? 1 : 0;
  }
  for (StreamProgress& stream : streams_) {
    if (!stream.running) continue;
    const ReplayFlow* flow = flow_of(stream);
    stream.rate = flow != nullptr ? transfer_rate(*flow) : item(head(stream)).memory_bound ? memory : arithmetic;
  }
}

double ReplayRun::next_moment() {
  set_rates();
  double moment = kNever;
  if (host_item_ < replay_.items.size() && !host_waits_) moment = host_ready_;
  for (const StreamProgress& stream : streams_) {
    if (stream.running) {
      if (stream.latency <= 0 && stream.duration <= 0) continue;  // waits for other ranks
      // The end of the latency changes the parts of the links.
      moment = std::min(moment, now_ + (stream.latency > 0 ? stream.latency : stream.duration / stream.rate));
    } else if (stream.has_head() && visible(head(stream)) > now_) {
      moment = std::min(moment, visible(head(stream)));
    }
  }
  return moment;
}

StreamState ReplayRun::state(const StreamProgress& stream) const {
  if (stream.running) return StreamState::kBusy;
  if (stream.has_head() && visible(head(stream)) <= now_) {
    const ReplayItem& record = item(awaited_[head(stream)]);
    const bool of_collectives = streams_[static_cast<size_t>(record.stream)].has_collectives;
    return of_collectives ? StreamState::kExposed : StreamState::kIdle;
  }
  return stream.head < stream.expected ? StreamState::kHostBound : StreamState::kIdle;
}

void ReplayRun::advance_to(double moment) {
  const double seconds = moment - now_;
  const double rounding = kRoundingRest + 4 * std::numeric_limits<double>::epsilon() * moment;
  for (size_t i = 0; i < streams_.size(); ++i) {
    StreamProgress& stream = streams_[i];
    append_segment(result_.streams[i], {.state = state(stream), .begin = now_, .end = moment});
    if (!stream.running) continue;
    double& left = stream.latency > 0 ? stream.latency : stream.duration;
    const double done = stream.latency > 0 ? seconds : seconds * stream.rate;
    left = left - done <= rounding ? 0 : left - done;
  }
  now_ = moment;
}

bool ReplayRun::is_finished() const {
  return host_item_ == replay_.items.size() &&
         std::none_of(streams_.begin(), streams_.end(), [](const StreamProgress& stream) { return stream.has_head(); });
}

bool ReplayRun::take_further() {
  bool changed = take_host_further();
  for (StreamProgress& stream : streams_) changed = take_stream_further(stream) || changed;
  return changed;
}

ReplayResult ReplayRun::take_result() {
  result_.seconds = now_;
  return std::move(result_);
}

// Ranks are taken further until nothing more happens at this moment: the work of one may let another one go on.
void do_all_of_this_moment(std::vector<ReplayRun>& ranks) {
  bool changed = true;
  while (changed) {
    changed = false;
    for (ReplayRun& rank : ranks) {
      while (rank.take_further()) changed = true;
    }
  }
}

std::vector<ReplayResult> results_of(const std::vector<const Replay*>& ranks) {
  Meetings meetings(ranks.size());
  std::vector<ReplayRun> runs;
  runs.reserve(ranks.size());
  for (const Replay* replay : ranks) {
    if (replay->streams < 0 || replay->launch_delay < 0) throw std::invalid_argument("the replay has a negative size");
    runs.emplace_back(*replay, meetings);
  }
  std::vector<ReplayResult> results(ranks.size());
  std::vector<bool> ended(ranks.size());
  for (size_t left = runs.size(); left > 0;) {
    do_all_of_this_moment(runs);
    double moment = kNever;
    for (size_t i = 0; i < runs.size(); ++i) {
      if (ended[i]) continue;
      if (!runs[i].is_finished()) {
        moment = std::min(moment, runs[i].next_moment());
        continue;
      }
      results[i] = runs[i].take_result();
      ended[i] = true;
      --left;
    }
    if (left == 0) break;
    if (moment == kNever) throw std::logic_error("the replay waits for something that never happens");
    for (size_t i = 0; i < runs.size(); ++i) {
      if (!ended[i]) runs[i].advance_to(moment);
    }
  }
  return results;
}

}  // namespace

std::vector<ReplayResult> run_replays(const std::vector<Replay>& ranks) {
  std::vector<const Replay*> replays;
  for (const Replay& replay : ranks) replays.push_back(&replay);
  return results_of(replays);
}

ReplayResult run_replay(const Replay& replay) { return std::move(results_of({&replay}).front()); }

}  // namespace fsdp::planner
