// What a rank did when, unit by unit: for a trace viewer.
//
//   sharded->start_trace();
//   … some steps …
//   write_trace("trace.json", *communicator, sharded->stop_trace());   // opens in ui.perfetto.dev
#pragma once

#include <c10/util/Exception.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/communicator.h"

namespace fsdp {

// What the ranges of one row have in common.
enum class TraceTrack : uint8_t {
  kStep,     // ranges of the user's (ShardedModule::trace_range)
  kCompute,  // operators of a unit, from its first one to the first one of another unit
  kWait,     // inside kCompute or between: the computing thread waits for a gather or a reduction
  kGather,   // from the issue of an all-gather until it was waited for
  kReduce,   // from the issue of a unit's reduction until it was waited for
  kLimiter,  // the gather of a unit that is expected is held back by Options::limit_all_gathers
};
const char* to_string(TraceTrack track);

struct TraceRange {
  TraceTrack track;
  std::string name;  // of the unit
  Pass pass;
  int64_t begin_ns;  // since the epoch of std::chrono::system_clock
  int64_t end_ns;
};

// Memory at one moment: taken where a unit is gathered or released, where gradients are captured, reduced or added to
// the shards', and where a kStep range begins or ends. After the first thousand, where reading the
// memory of a large model takes more than 50 microseconds, as many samples are taken as cost a tenth of the time.
struct TraceMemory {
  int64_t at_ns;  // see TraceRange
  // Bytes by category: those of ShardedModule::memory(), those of start_trace's caller, "buffers kept for reuse", in
  // which nothing lies, and "everything else": what beside these is allocated on the device where parameters are used
  // (activations, above all). On CPUs that is what glibc's malloc has handed out; where it cannot be known the last
  // category is left out.
  std::vector<std::pair<std::string, int64_t>> bytes;
};

// What one rank has recorded.
struct Trace {
  std::vector<TraceRange> ranges;
  std::vector<TraceMemory> memory;

  bool empty() const { return ranges.empty() && memory.empty(); }
};

// The file of a trace could not be written. All ranks know, and can go on together.
class TraceNotWritten : public c10::Error {
 public:
  using c10::Error::Error;
};

// Writes what all ranks of the communicator have recorded into one file in the Trace Event Format (JSON), a process for
// each rank and a row for each track; where gathers overlap, several rows; and a counter "memory" for each rank with a
// series for each category. Collective; rank 0 writes. `trace`: of this rank. Throws TraceNotWritten, on all ranks,
// when the file cannot be written.
void write_trace(const std::filesystem::path& path, Communicator& communicator, const Trace& trace);

}  // namespace fsdp
