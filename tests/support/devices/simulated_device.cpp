#include "support/devices/simulated_device.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/DeviceType.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <new>
#include <utility>

#include "support/devices/simulated_fallback.h"
#include "support/devices/simulated_memory.h"
#include "support/devices/simulated_operators.h"
#include "support/devices/simulated_stream.h"

namespace fsdp::testing {
namespace {

using EventHandle = std::shared_ptr<SimulatedEvent>;
const EventHandle& handle_of(void* event) { return *static_cast<EventHandle*>(event); }

struct SimulatedGuard final : c10::impl::DeviceGuardImplInterface {
  static c10::Device device_at(c10::DeviceIndex index) { return {c10::kPrivateUse1, index}; }
  static c10::Stream stream_at(c10::Device device, c10::StreamId id) {
    return c10::Stream(c10::Stream::UNSAFE, with_current_index(device), id);
  }

  c10::DeviceType type() const override { return c10::kPrivateUse1; }
  c10::Device exchangeDevice(c10::Device device) const override {
    return device_at(std::exchange(current_index(), device.index()));
  }
  c10::Device getDevice() const override { return device_at(current_index()); }
  void setDevice(c10::Device device) const override { current_index() = device.index(); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { current_index() = device.index(); }
  c10::DeviceIndex deviceCount() const noexcept override { return kSimulatedDevices; }

  c10::Stream getStream(c10::Device device) const override { return stream_at(device, current_stream_id(device)); }
  c10::Stream getDefaultStream(c10::Device device) const override { return stream_at(device, 0); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    static std::atomic<c10::StreamId> taken = 0;
    return stream_at(device, 1 + taken++ % (kSimulatedStreams - 1));
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    return stream_at(stream.device(), std::exchange(current_stream_id(stream.device()), stream.id()));
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override { return &simulated_stream(stream); }
  bool queryStream(const c10::Stream& stream) const override { return simulated_stream(stream).idle(); }
  void synchronizeStream(const c10::Stream& stream) const override { simulated_stream(stream).synchronize(); }
  void synchronizeDevice(const c10::DeviceIndex device) const override { synchronize_simulated_streams(device); }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex, const c10::EventFlag) const override {
    if (*event == nullptr) *event = new EventHandle(std::make_shared<SimulatedEvent>());
    SimulatedEvent::record(handle_of(*event), simulated_stream(stream));
  }
  void block(void* event, const c10::Stream& stream) const override {
    SimulatedEvent::block(handle_of(event), simulated_stream(stream));
  }
  bool queryEvent(void* event) const override { return handle_of(event)->is_reached(); }
  void synchronizeEvent(void* event) const override { handle_of(event)->synchronize(); }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete static_cast<EventHandle*>(event);
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    record_use_on_stream(data, simulated_stream(stream));
  }
};

struct SimulatedHooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return kSimulatedDevices; }
  void setCurrentDevice(c10::DeviceIndex device) const override { current_index() = device; }
  c10::DeviceIndex getCurrentDevice() const override { return current_index(); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    return std::exchange(current_index(), device);
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override { return exchangeDevice(device); }
  bool isPinnedPtr(const void* data) const override { return is_pinned_memory(data); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return pinned_memory_allocator(); }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    return at::detail::getDefaultCPUGenerator();
  }
  at::Generator getNewGenerator(c10::DeviceIndex) const override { return at::detail::createCPUGenerator(); }
};

// The guard is registered when the program is loaded, because autograd counts devices only once, when it first runs
// backward.
const bool guard_is_registered = [] {
  // Never destroyed, and no leak where a plan registers another one in its place.
  alignas(SimulatedGuard) static char memory[sizeof(SimulatedGuard)];
  c10::impl::registerDeviceGuard(c10::kPrivateUse1, new (memory) SimulatedGuard);
  return true;
}();

void register_device() {
  // The hooks must be registered before the name: once a device type has a name, other threads treat it as the
  // accelerator and ask for its hooks.
  at::RegisterPrivateUse1HooksInterface(new SimulatedHooks);
  c10::register_privateuse1_backend("simulated");
  register_simulated_operators();
  register_simulated_fallback();
}

}  // namespace

c10::Device simulated_device(int index) {
  static std::once_flag registered;
  std::call_once(registered, register_device);
  return SimulatedGuard::device_at(static_cast<c10::DeviceIndex>(index));
}

void enqueue_on_simulated_stream(void* native_stream, std::function<void()> work) {
  static_cast<SimulatedStream*>(native_stream)->enqueue(std::move(work));
}

}  // namespace fsdp::testing
