// The trace of a rank: what it did when, unit by unit, and its file for a trace viewer. tracing.h records it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/communicator.h"
#include "fsdp/errors.h"

namespace fsdp {

// The kind of a range. Ranges of one kind share a row of the trace.
enum class TraceTrack : uint8_t {
  kStep,     // ranges of the user (Tracing::range)
  kCompute,  // operators of a unit, from the first one until the first one of another unit
  kWait,     // inside or between kCompute ranges: the computing thread waits for a gather or a reduction
  kGather,   // from the issue of an all-gather until it was waited for
  kReduce,   // from the issue of a unit's reduction until it was waited for
  kLimiter,  // Options::limit_all_gathers delays the gather of an expected unit
  // Of a stage of a pipeline, in a row of its own: the passes of micro-batches (F, B, I and W of
  // fsdp/pipeline_schedule.h), and waits for messages between them.
  kStageForward,
  kStageBackward,
  kStageInputGradient,
  kStageWeightGradient,
  kStageWait,
};
const char* to_string(TraceTrack track);

struct TraceRange {
  TraceTrack track;
  std::string name;  // name of the unit; of a pass, such as "F3"; of the message that a stage waits for
  Pass pass;
  int64_t begin_ns;  // since the epoch of std::chrono::system_clock
  int64_t end_ns;
  int stage = -1;  // of a pipeline, in the order of the model; else -1
};

// Memory at one moment. Sampled when a unit is gathered or released, when gradients are captured, reduced or added to
// the shards' gradients, and when a kStep range begins or ends. After the first thousand samples, if reading the memory
// of a large model takes more than 50 microseconds, only as many samples are taken as cost a tenth of the time.
struct TraceMemory {
  int64_t at_ns;  // time in ns, as in TraceRange
  // Bytes by category: the categories of Diagnostics::memory(), the categories of Tracing::start's caller, "buffers
  // kept for reuse", which are not in use, and "everything else": other memory allocated on the device where parameters
  // are used (mainly activations). On CPUs, that is the memory that glibc's malloc has allocated; if it is unknown,
  // this category is omitted.
  std::vector<std::pair<std::string, int64_t>> bytes;
};

// The recording of one rank.
struct Trace {
  std::vector<TraceRange> ranges;
  std::vector<TraceMemory> memory;

  bool empty() const { return ranges.empty() && memory.empty(); }
};

// Thrown by write_trace if the file of a trace could not be written. All ranks get it, and can continue together.
class TraceNotWritten : public ErrorOfAllRanks {
 public:
  using ErrorOfAllRanks::ErrorOfAllRanks;
};

// Writes the recordings of all ranks of the communicator to one file in the Trace Event Format (JSON): a process for
// each rank, a row for each track (several if gathers overlap) and for each stage of a pipeline, and a counter "memory"
// for each rank with a series for each category. Collective; rank 0 writes the file. `trace`: the recording of this
// rank. Throws TraceNotWritten on all ranks if the file cannot be written.
void write_trace(const std::filesystem::path& path, Communicator& communicator, const Trace& trace);

}  // namespace fsdp
