// Who has to wait for whom where memory is used on several streams of a device. On a device without streams all of this
// does nothing.
//
// [Note: memory reuse by events]
// Memory that passes from one stream to another is not handed to the caching allocator in between (record_stream would
// have it wait for its release, and hold it meanwhile): it stays with its owner, who notes for each piece, by an event,
// where its last use ends, and lets the next user's stream wait for that. The host waits for nothing, and what is in
// use at a time is known when it is issued. Memory is allocated, and given back, on one home stream: given back once
// that stream is behind all uses.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "base/device_stream.h"

namespace fsdp {

// Makes `later` wait for all that was enqueued on `earlier` so far.
void order_streams(const c10::Stream& earlier, const c10::Stream& later);

// The last uses of pieces of memory. Threads: the caller's lock.
class MemoryOrder {
 public:
  // The current stream is about to use these bytes: it waits for their last uses elsewhere.
  void before_use(const at::Tensor& bytes);
  // The current stream has used them.
  void after_use(const at::Tensor& bytes);

 private:
  struct Use {
    const char* begin;
    const char* end;
    DeviceEvent over;
  };
  std::vector<Use> uses_;
};

// Something that streams use in turn: each waits for the one before.
class StreamTurns {
 public:
  // The stream that is current in this thread is about to use it.
  void take(c10::Device device);
  // It is another thing now.
  void forget() { last_.reset(); }

 private:
  std::optional<c10::Stream> last_;
};

// Something that one stream makes and several read.
class StreamReaders {
 public:
  // The current stream has made it, or waits for it, and reads it.
  void begin(c10::Device device);
  // The current stream is about to read it.
  void add(c10::Device device);
  // The current stream waits for all reads so far; there are no readers then.
  void end(c10::Device device);

 private:
  std::vector<c10::Stream> readers_;
};

}  // namespace fsdp
