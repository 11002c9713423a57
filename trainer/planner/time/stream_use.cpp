#include "planner/time/stream_use.h"

#include <algorithm>

namespace fsdp::planner {
namespace {

double& seconds_in(StreamUse& use, StreamState state) {
  switch (state) {
    case StreamState::kBusy:
      return use.busy;
    case StreamState::kExposed:
      return use.exposed;
    case StreamState::kHostBound:
      return use.host_bound;
    case StreamState::kIdle:
      break;
  }
  return use.idle;
}

}  // namespace

StreamUse use_between(const std::vector<StreamSegment>& segments, double begin, double end) {
  StreamUse use;
  for (const StreamSegment& segment : segments) {
    const double seconds = std::min(segment.end, end) - std::max(segment.begin, begin);
    if (seconds > 0) seconds_in(use, segment.state) += seconds;
  }
  return use;
}

void append_segment(std::vector<StreamSegment>& segments, const StreamSegment& segment) {
  if (segment.end <= segment.begin) return;
  if (!segments.empty() && segments.back().state == segment.state) {
    segments.back().end = segment.end;
  } else {
    segments.push_back(segment);
  }
}

}  // namespace fsdp::planner
