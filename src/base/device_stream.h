// Streams and events of whatever device there is, through the device-generic interfaces of c10. A device without
// streams (the CPU) does what it is told at once: there all of this does nothing.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <optional>

namespace fsdp {

// Whether operators on this device are enqueued on streams, rather than done when they return.
bool has_streams(c10::Device device);

// How many devices of a type this process can use; 0 where LibTorch was built without it.
int device_count(c10::DeviceType type);

// The device with its index: for "cuda", the one that is current in this thread.
c10::Device with_index(c10::Device device);

// The stream that this thread's operators on `device` go to.
c10::Stream current_stream(c10::Device device);

enum class StreamPriority : uint8_t { kNormal, kHigh };

// A stream beside the default one, from LibTorch's pool: it is never destroyed, and streams repeat when many are
// taken. Of a device without streams: its only one.
c10::Stream take_stream(c10::Device device, StreamPriority priority = StreamPriority::kNormal);

// What the device's own library calls this stream (a cudaStream_t); null for a device without streams.
void* native_stream(const c10::Stream& stream);

// Makes `stream` and its device current in this thread for a scope.
class CurrentStreamGuard {
 public:
  explicit CurrentStreamGuard(const c10::Stream& stream);
  ~CurrentStreamGuard();
  CurrentStreamGuard(const CurrentStreamGuard&) = delete;
  CurrentStreamGuard& operator=(const CurrentStreamGuard&) = delete;

 private:
  std::optional<c10::Stream> previous_stream_;
  c10::Device previous_device_;
};

// A point in what was enqueued on a stream. One that was never recorded lies in the past. One thread at a time.
class DeviceEvent {
 public:
  // The point behind all that was enqueued on `stream` so far; forgets the point before. The memory behind the event
  // is kept for the next recording.
  void record(const c10::Stream& stream);
  void record_current(c10::Device device);

  // What is enqueued on `stream` from now on waits until the device has reached the point. The host does not wait.
  void block(const c10::Stream& stream) const;
  // The same for the stream that is current in this thread.
  void block_current() const;

  // Whether the device has reached the point.
  bool reached() const;
  // Blocks the host until then.
  void synchronize() const;

 private:
  std::optional<c10::Event> event_;
};

}  // namespace fsdp
