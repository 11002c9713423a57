// The streams of one engine on its device.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include "base/device_stream.h"
#include "base/stream_order.h"

namespace fsdp {

// [Note: streams]
// Computation goes where the user's operators go: to the stream that is current in the thread, by default the same one
// all the time. Beside it an engine has three streams: for gathers, for reductions in shard groups, for reductions over
// replicas. Each waits for the others by events only where data or memory passes:
// - a gather waits for the last use of the memory that it fills, and for writes to shards: once after each step, when
//   versions have moved; not for computation that was enqueued in between;
// - computation waits for the gather of a unit at the unit's first use on its stream;
// - a reduction waits for the captures of its unit; the second stage for the first;
// - whoever reads gradients after backward comes behind all reductions.
// On a device without streams there is one order of everything, and this costs nothing.
class EngineStreams {
 public:
  EngineStreams(c10::Device device_, StreamPriority priority)
      : device(device_),
        home(current_stream(device_)),
        gather(take_stream(device_, priority)),
        reduce(take_stream(device_, priority)),
        all_reduce(take_stream(device_, priority)) {}

  // Whether there is more than one order of things.
  bool apart() const { return has_streams(device); }

  // Gathers that are issued from now on wait for all writes to shards that were issued so far: on the current stream,
  // and by optimizers that step while gradients are reduced.
  void order_gathers_behind_writes() const {
    order_streams(current_stream(device), gather);
    order_streams(reduce, gather);
    order_streams(all_reduce, gather);
  }
  // The current stream waits for the reductions that were issued.
  void await_reductions() const {
    order_streams(reduce, current_stream(device));
    order_streams(all_reduce, current_stream(device));
  }
  // The stream of the engine's memory waits for all that uses it: the memory may be given back.
  void bring_home() const {
    order_streams(current_stream(device), home);
    for (const c10::Stream& stream : {gather, reduce, all_reduce}) {
      order_streams(stream, home);
    }
  }

  const c10::Device device;
  // The one that was current when the engine was made: its memory comes from it.
  const c10::Stream home;
  const c10::Stream gather;
  const c10::Stream reduce;
  const c10::Stream all_reduce;
};

}  // namespace fsdp
