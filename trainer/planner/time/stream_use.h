// The use of a stream's time.
#pragma once

#include <cstdint>
#include <vector>

namespace fsdp::planner {

enum class StreamState : uint8_t {
  kBusy,       // a kernel or a collective runs
  kExposed,    // the stream waits for an event of another stream that has collectives
  kHostBound,  // the host has not issued the stream's next work
  kIdle,       // all else: a wait for another stream, or no more work
};

// Segments of a stream follow one another without gaps, from 0 to the end of the replay.
struct StreamSegment {
  StreamState state = StreamState::kIdle;
  double begin = 0;
  double end = 0;
};

// Seconds.
struct StreamUse {
  double busy = 0;
  double exposed = 0;
  double host_bound = 0;
  double idle = 0;

  double total() const { return busy + exposed + host_bound + idle; }
};

// Sums the parts of segments that lie between `begin` and `end`, such as those of one step.
StreamUse use_between(const std::vector<StreamSegment>& segments, double begin, double end);

// Appends a segment, or extends the last one of the same state. Does nothing if it is empty.
void append_segment(std::vector<StreamSegment>& segments, const StreamSegment& segment);

}  // namespace fsdp::planner
