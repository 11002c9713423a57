// Whether the operators of a forward become part of a graph.
#pragma once

namespace fsdp::seams {

// While one lives, this thread runs a forward whose graph backward records later, in a second run (activation
// checkpointing). Gradient mode is off meanwhile.
class GraphRecordedLater {
 public:
  GraphRecordedLater();
  ~GraphRecordedLater();
  GraphRecordedLater(const GraphRecordedLater&) = delete;
  GraphRecordedLater& operator=(const GraphRecordedLater&) = delete;
};

// Whether this thread records a graph, now or later.
bool records_graph();

}  // namespace fsdp::seams
