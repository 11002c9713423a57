// A discrete-event replay of the work of one host thread on the streams of one device, or of several ranks that meet.
//
// Where hosts compute, the host thread itself runs kernels and collectives: it goes on when they have ended.
//
// Work of one stream runs in order, work of different streams at the same time. Collectives that share a link get equal
// parts of its bandwidth, and slow kernels down while they run; kernels of different streams do not slow one another.
// All times are in seconds, from the moment at which the host takes up the first item.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "planner/tape/meeting.h"
#include "planner/time/stream_use.h"

namespace fsdp::planner {

enum class ReplayKind : uint8_t {
  kKernel,           // on `stream`, for `duration`
  kCollective,       // on `stream`, with `flow`
  kRecord,           // `event` on `stream`
  kStreamWait,       // `stream` waits for the latest record of `event` so far; for nothing, if there is none
  kHostWaitsEvent,   // the host does, likewise
  kHostWaitsStream,  // the host waits until `stream` has no work; -1: until no stream has
  kHostWork,         // the host alone
};

struct ReplayItem {
  ReplayKind kind = ReplayKind::kKernel;
  // Whether a kernel is bound by memory and not by arithmetic: they are slowed differently.
  bool memory_bound = false;
  int stream = -1;
  int64_t event = -1;
  int flow = -1;        // an index into Replay::flows
  double host = 0;      // of the host thread, before the item is issued or waited for
  double duration = 0;  // of a kernel that nothing slows down
  // Only of collectives and of the host's work.
  MeetingRole role = MeetingRole::kNone;
  int meeting = -1;  // an index into Replay::meetings
};

struct LinkUse {
  int link = 0;  // an index into Replay::links
  double bytes = 0;
};

// The data that a collective moves. Collectives may share a flow's description.
struct ReplayFlow {
  double latency = 0;   // comes first, and uses no link
  double transfer = 0;  // the least time of the data, for reasons other than links
  std::vector<LinkUse> uses = {};
  // Parts of the device that it takes from kernels while it runs, latency included; 0 to below 1.
  double arithmetic_share = 0;
  double memory_share = 0;
};

struct Replay {
  std::vector<ReplayItem> items;  // in the order in which the host does them
  std::vector<ReplayFlow> flows;
  std::vector<double> links;               // bytes per second
  std::vector<std::string> meetings = {};  // names (Meeting::name)
  int streams = 1;
  bool host_computes = false;
  // From the end of an item's host time until the device can begin it. A guess.
  double launch_delay = 4e-6;
};

struct ReplayedItem {
  double issued = 0;  // the end of its host time
  // On the device. Of a stream's wait: from the moment when it is the stream's next item. Of items of the host: until
  // it goes on.
  double begin = 0;
  double end = 0;
};

struct ReplayResult {
  std::vector<ReplayedItem> items;
  double seconds = 0;       // until the host and all streams are done
  double host_busy = 0;     // the sum of all host times
  double host_waiting = 0;  // for events and streams
  std::vector<std::vector<StreamSegment>> streams;

  StreamUse use(int stream) const { return use_between(streams.at(static_cast<size_t>(stream)), 0, seconds); }
};

// Replays ranks that begin at the same time and wait for one another's items. Links are those of each rank. Throws
// std::invalid_argument for indices out of range and for times, bytes or bandwidths that make no sense, and
// std::logic_error if a rank waits for a message that none sends, or for ranks that do not come.
std::vector<ReplayResult> run_replays(const std::vector<Replay>& ranks);

// Replays one rank, which must meet no others.
ReplayResult run_replay(const Replay& replay);

}  // namespace fsdp::planner
