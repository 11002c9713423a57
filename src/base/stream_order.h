// Orders uses of the same memory on different device streams. On a device without streams, nothing here has an effect.
//
// [Note: memory reuse by events]
// Memory that passes from one stream to another is not returned to the caching allocator in between (with
// record_stream, the allocator would wait for its release and hold it meanwhile). It stays with its owner, which
// records an event after the last use of each piece and makes the stream of the next user wait for that event. The host
// never waits, and the amount of memory in use is known when work is issued. Memory is allocated and freed on one home
// stream; it is freed once that stream has been ordered after all uses.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "base/device_stream.h"

namespace fsdp::base {

// Makes `later` wait for all work enqueued on `earlier` so far.
void order_streams(const c10::Stream& earlier, const c10::Stream& later);

// The last uses of pieces of memory. Not thread-safe: the caller must hold a lock.
class MemoryOrder {
 public:
  // Call before the current stream uses these bytes: makes it wait for their last uses on other streams.
  void before_use(const at::Tensor& bytes);
  // Call after the current stream has used these bytes.
  void after_use(const at::Tensor& bytes);

 private:
  struct Use {
    const char* begin;
    const char* end;
    DeviceEvent over;
  };
  std::vector<Use> uses_;
};

// A resource that streams use in turn: each stream waits for the previous one.
class StreamTurns {
 public:
  // Call before the stream that is current in this thread uses the resource.
  void take(c10::Device device);
  // Clears the last user, because this object now stands for another resource.
  void clear() { last_.reset(); }

 private:
  std::optional<c10::Stream> last_;
};

// A resource that one stream produces and several streams read.
class StreamReaders {
 public:
  // Starts with the current stream as the only reader. That stream has produced the resource, or waits for it.
  void begin(c10::Device device);
  // Call before the current stream reads the resource.
  void add(c10::Device device);
  // Makes the current stream wait for all reads so far and clears the list of readers.
  void end(c10::Device device);

 private:
  std::vector<c10::Stream> readers_;
};

}  // namespace fsdp::base
