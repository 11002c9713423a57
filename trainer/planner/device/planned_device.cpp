#include "planner/device/planned_device.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/DeviceType.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <utility>

#include "models/experts.h"
#include "planner/device/attention.h"
#include "planner/device/memory_kernels.h"
#include "planner/device/planned_kernels.h"
#include "planner/device/planned_memory.h"
#include "torch_seams/self_check.h"

namespace fsdp::planner {
namespace {

constexpr c10::StreamId kStreams = 33;  // the default one, and a pool as large as CUDA's
constexpr uint8_t kPriority = 255;      // over all other allocators

c10::StreamId& current_stream() {
  thread_local c10::StreamId id = 0;
  return id;
}

// The point that was recorded last.
struct Event {
  int64_t point;
};

template <typename Report>
void report(const Report& report) {
  PlannedMemory::get().report(report);
}

struct PlannedGuard final : c10::impl::DeviceGuardImplInterface {
  static c10::Stream stream_at(c10::StreamId id) { return c10::Stream(c10::Stream::UNSAFE, planned_device(), id); }

  c10::DeviceType type() const override { return c10::kPrivateUse1; }
  c10::Device exchangeDevice(c10::Device) const override { return planned_device(); }
  c10::Device getDevice() const override { return planned_device(); }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }

  c10::Stream getStream(c10::Device) const override { return stream_at(current_stream()); }
  c10::Stream getDefaultStream(c10::Device) const override { return stream_at(0); }
  c10::Stream getStreamFromGlobalPool(c10::Device, bool) const override {
    static std::atomic<c10::StreamId> taken = 0;
    return stream_at(1 + taken++ % (kStreams - 1));
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    return stream_at(std::exchange(current_stream(), stream.id()));
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override {
    return reinterpret_cast<void*>(static_cast<intptr_t>(stream.id() + 1));
  }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream& stream) const override {
    report([&](DeviceLog& log) { log.host_waited_for_stream(stream_number(stream)); });
  }
  void synchronizeDevice(const c10::DeviceIndex) const override {
    for (c10::StreamId id = 0; id < kStreams; ++id) synchronizeStream(stream_at(id));
  }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex, const c10::EventFlag) const override {
    static std::atomic<int64_t> points = 0;
    if (*event == nullptr) *event = new Event{};
    const int64_t point = static_cast<Event*>(*event)->point = points++;
    report([&](DeviceLog& log) { log.recorded(point, stream_number(stream)); });
  }
  void block(void* event, const c10::Stream& stream) const override {
    report([&](DeviceLog& log) { log.blocked(static_cast<Event*>(event)->point, stream_number(stream)); });
  }
  bool queryEvent(void*) const override { return true; }
  void synchronizeEvent(void* event) const override {
    report([&](DeviceLog& log) { log.host_waited_for_event(static_cast<Event*>(event)->point); });
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override { delete static_cast<Event*>(event); }
  void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream&) const override {
    TORCH_CHECK(false,
                "fsdp plan: record_stream delays the reuse of memory until an unknown time, which cannot be planned");
  }
};

struct PlannedHooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  void setCurrentDevice(c10::DeviceIndex) const override {}
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex) const override { return 0; }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex) const override { return 0; }
  bool isPinnedPtr(const void* data) const override { return PlannedMemory::get().is_pinned(data); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &planned_pinned_allocator(); }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    return at::detail::getDefaultCPUGenerator();
  }
  at::Generator getNewGenerator(c10::DeviceIndex) const override { return at::detail::createCPUGenerator(); }
};

// LibTorch warns of each kernel that is replaced.
struct Silent final : c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

// The guard comes first: LibTorch counts devices when it first runs backward, which the self-check does, while
// operators still compute. The hooks come before the name: once a device type has a name, other threads treat it as the
// accelerator and ask for its hooks.
void register_device() {
  c10::impl::registerDeviceGuard(c10::kPrivateUse1, new PlannedGuard);
  seams::self_check();
  PlannedMemory::get();
  Silent silent;
  const c10::WarningUtils::WarningHandlerGuard no_warnings(&silent);
  at::RegisterPrivateUse1HooksInterface(new PlannedHooks);
  c10::register_privateuse1_backend("planned");
  c10::SetAllocator(c10::kPrivateUse1, &planned_device_allocator(), kPriority);
  c10::SetCPUAllocator(&planned_host_allocator(), kPriority);
  register_memory_kernels();
  register_attention();
  register_planned_kernels();
}

}  // namespace

void begin_planning() {
  models::assume_even_routing();
  static std::once_flag registered;
  std::call_once(registered, register_device);
}

int current_stream_number() { return static_cast<int>(current_stream()); }

}  // namespace fsdp::planner
