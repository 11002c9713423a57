#include "base/device_stream.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace fsdp::base {
namespace {

c10::impl::VirtualGuardImpl guard_of(c10::DeviceType type) { return c10::impl::VirtualGuardImpl(type); }

}  // namespace

bool has_streams(c10::Device device) { return !device.is_cpu() && !device.is_meta(); }

int device_count(c10::DeviceType type) {
  return c10::impl::hasDeviceGuardImpl(type) ? guard_of(type).deviceCount() : 0;
}

c10::Device with_index(c10::Device device) {
  return device.has_index() || !has_streams(device) ? device : guard_of(device.type()).getDevice();
}

c10::Stream current_stream(c10::Device device) { return guard_of(device.type()).getStream(with_index(device)); }

c10::Stream take_stream(c10::Device device, StreamPriority priority) {
  if (!has_streams(device)) return current_stream(device);
  return guard_of(device.type()).getStreamFromGlobalPool(with_index(device), priority == StreamPriority::kHigh);
}

void* native_stream(const c10::Stream& stream) {
  return has_streams(stream.device()) ? guard_of(stream.device_type()).getStreamNativeHandle(stream) : nullptr;
}

CurrentStreamGuard::CurrentStreamGuard(const c10::Stream& stream) : previous_device_(stream.device()) {
  if (!has_streams(stream.device())) return;
  const auto guard = guard_of(stream.device_type());
  previous_device_ = guard.exchangeDevice(stream.device());
  previous_stream_ = guard.exchangeStream(stream);
}

CurrentStreamGuard::~CurrentStreamGuard() {
  if (!previous_stream_) return;
  const auto guard = guard_of(previous_device_.type());
  guard.exchangeStream(*previous_stream_);
  guard.uncheckedSetDevice(previous_device_);
}

void DeviceEvent::record(const c10::Stream& stream) {
  if (!has_streams(stream.device())) {
    event_.reset();
    return;
  }
  // An event belongs to the device on which it was recorded first.
  if (!event_ || event_->device() != stream.device()) event_.emplace(stream.device_type());
  event_->record(stream);
}

void DeviceEvent::record_current(c10::Device device) {
  if (has_streams(device)) {
    record(current_stream(device));
  } else {
    event_.reset();
  }
}

void DeviceEvent::block(const c10::Stream& stream) const {
  if (event_) event_->block(stream);
}

void DeviceEvent::block_current() const {
  if (event_) event_->block(current_stream(event_->device()));
}

bool DeviceEvent::reached() const { return !event_ || event_->query(); }

void DeviceEvent::synchronize() const {
  if (event_) event_->synchronize();
}

}  // namespace fsdp::base
