// Streams and events of any device type, through the device-generic interfaces of c10. A device without streams (the
// CPU) runs operators synchronously, so operations on its streams and events do nothing.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <optional>

namespace fsdp::base {

// Whether operators on this device are enqueued on streams (true) or done when they return (false).
bool has_streams(c10::Device device);

// Returns the number of devices of a type that this process can use; 0 if LibTorch was built without that type.
int device_count(c10::DeviceType type);

// Returns the device with an index: for "cuda", the index of the device that is current in this thread.
c10::Device with_index(c10::Device device);

// Returns the stream to which this thread's operators on `device` go.
c10::Stream current_stream(c10::Device device);

enum class StreamPriority : uint8_t { kNormal, kHigh };

// Returns a stream other than the default one, from LibTorch's pool. It is never destroyed; streams repeat if many are
// taken. For a device without streams, returns its only stream.
c10::Stream take_stream(c10::Device device, StreamPriority priority = StreamPriority::kNormal);

// Returns the stream's native handle (a cudaStream_t), or null for a device without streams.
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

// A point in the work that was enqueued on a stream. An event that was never recorded counts as reached. Not
// thread-safe: one thread at a time.
class DeviceEvent {
 public:
  // Records the point after all work enqueued on `stream` so far in place of the previous point. The memory of the
  // event is kept for the next recording.
  void record(const c10::Stream& stream);
  void record_current(c10::Device device);

  // Makes work that is enqueued on `stream` from now on wait until the device has reached the point. The host does not
  // wait.
  void block(const c10::Stream& stream) const;
  // Does the same for the stream that is current in this thread.
  void block_current() const;

  // Whether the device has reached the point.
  bool reached() const;
  // Blocks the host until the device has reached the point.
  void synchronize() const;

 private:
  std::optional<c10::Event> event_;
};

}  // namespace fsdp::base
