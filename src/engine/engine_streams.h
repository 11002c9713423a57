// The streams of one engine on its device.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include "base/device_stream.h"
#include "base/stream_order.h"

namespace fsdp::engine {

// [Note: streams]
// Computation runs where the user's operators run: on the stream that is current in the thread, by default always the
// same one. In addition, an engine has three streams: for gathers, for reductions in shard groups, and for reductions
// over replicas. A stream waits for another one, by events, only if data or memory passes between them:
// - A gather waits for the last use of the memory that it fills, and for writes to shards. The latter wait happens once
//   after each step, when versions have changed. A gather does not wait for computation that was enqueued in between.
// - Computation waits for the gather of a unit at the unit's first use on its stream.
// - A reduction waits for the captures of its unit; its second stage waits for the first.
// - Reads of gradients after backward come after all reductions.
// On a device without streams, all work has one order, and this costs nothing.
class EngineStreams {
 public:
  EngineStreams(c10::Device device_, base::StreamPriority priority)
      : device(device_),
        home(base::current_stream(device_)),
        gather(base::take_stream(device_, priority)),
        reduce(base::take_stream(device_, priority)),
        all_reduce(base::take_stream(device_, priority)) {}

  // Whether the device has streams (false on CPU).
  bool apart() const { return base::has_streams(device); }

  // Makes all gathers that are issued from now on wait for the writes to shards that were issued so far: on the current
  // stream, and by optimizers that step while gradients are reduced.
  void order_gathers_after_writes() const {
    base::order_streams(base::current_stream(device), gather);
    base::order_streams(reduce, gather);
    base::order_streams(all_reduce, gather);
  }
  // Makes the current stream wait for the reductions that were issued.
  void await_reductions() const {
    base::order_streams(reduce, base::current_stream(device));
    base::order_streams(all_reduce, base::current_stream(device));
  }
  // Makes the stream of the engine's memory wait for all uses of the memory, so that the memory may be freed.
  void bring_home() const {
    base::order_streams(base::current_stream(device), home);
    for (const c10::Stream& stream : {gather, reduce, all_reduce}) base::order_streams(stream, home);
  }

  const c10::Device device;
  // The stream that was current when the engine was made. The engine's memory is allocated on it.
  const c10::Stream home;
  const c10::Stream gather;
  const c10::Stream reduce;
  const c10::Stream all_reduce;
};

}  // namespace fsdp::engine
