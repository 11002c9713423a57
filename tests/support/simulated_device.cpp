#include "support/simulated_device.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/view_native.h>
#include <c10/core/Allocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace fsdp::testing {
namespace {

constexpr int kDevices = 2;
constexpr int kStreams = 97;  // of each device: the default one and a pool
constexpr auto kLateness = std::chrono::microseconds(300);

class SimulatedStream {
 public:
  SimulatedStream() : thread_([this] { run(); }) {}
  ~SimulatedStream() {
    enqueue(nullptr);
    thread_.join();
  }

  void enqueue(std::function<void()> work) {
    std::lock_guard lock(mutex_);
    queue_.push_back(std::move(work));
    changed_.notify_all();
  }
  bool idle() {
    std::lock_guard lock(mutex_);
    return queue_.empty();
  }
  void synchronize() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return queue_.empty(); });
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return !queue_.empty(); });
      const auto work = queue_.front();
      lock.unlock();
      if (!work) return;
      std::this_thread::sleep_for(kLateness);
      work();
      lock.lock();
      queue_.pop_front();  // only now: a stream is idle when its last item is done
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;
  std::thread thread_;
};

// Made at their first use.
SimulatedStream& stream_of(c10::DeviceIndex device, c10::StreamId id) {
  static std::mutex mutex;
  static std::array<std::array<std::unique_ptr<SimulatedStream>, kStreams>, kDevices> streams;
  std::lock_guard lock(mutex);
  auto& stream = streams.at(static_cast<size_t>(device)).at(static_cast<size_t>(id));
  if (!stream) stream = std::make_unique<SimulatedStream>();
  return *stream;
}
SimulatedStream& stream_of(const c10::Stream& stream) { return stream_of(stream.device_index(), stream.id()); }

class EventState {
 public:
  uint64_t record() { return ++recorded_; }
  uint64_t recorded() const { return recorded_; }
  void reach(uint64_t version) {
    std::lock_guard lock(mutex_);
    reached_ = std::max(reached_, version);
    changed_.notify_all();
  }
  void wait_for(uint64_t version) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return reached_ >= version; });
  }
  bool is_reached() {
    std::lock_guard lock(mutex_);
    return reached_ >= recorded_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t recorded_ = 0;
  uint64_t reached_ = 0;
};
using EventHandle = std::shared_ptr<EventState>;
EventState& state_of(void* event) { return **static_cast<EventHandle*>(event); }

struct Current {
  c10::DeviceIndex device = 0;
  std::array<c10::StreamId, kDevices> streams{};
};
Current& current() {
  thread_local Current value;
  return value;
}
c10::StreamId& current_stream_id(c10::Device device) {
  return current().streams.at(static_cast<size_t>(device.has_index() ? device.index() : current().device));
}

struct SimulatedGuard final : c10::impl::DeviceGuardImplInterface {
  static c10::Device device_at(c10::DeviceIndex index) { return {c10::kPrivateUse1, index}; }
  static c10::Stream stream_at(c10::Device device, c10::StreamId id) {
    return c10::Stream(c10::Stream::UNSAFE, device_at(device.has_index() ? device.index() : current().device), id);
  }

  c10::DeviceType type() const override { return c10::kPrivateUse1; }
  c10::Device exchangeDevice(c10::Device device) const override {
    return device_at(std::exchange(current().device, device.index()));
  }
  c10::Device getDevice() const override { return device_at(current().device); }
  void setDevice(c10::Device device) const override { current().device = device.index(); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { current().device = device.index(); }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }

  c10::Stream getStream(c10::Device device) const override { return stream_at(device, current_stream_id(device)); }
  c10::Stream getDefaultStream(c10::Device device) const override { return stream_at(device, 0); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    static std::atomic<c10::StreamId> taken = 0;
    return stream_at(device, 1 + taken++ % (kStreams - 1));
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    return stream_at(stream.device(), std::exchange(current_stream_id(stream.device()), stream.id()));
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override { return &stream_of(stream); }
  bool queryStream(const c10::Stream& stream) const override { return stream_of(stream).idle(); }
  void synchronizeStream(const c10::Stream& stream) const override { stream_of(stream).synchronize(); }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex, const c10::EventFlag) const override {
    if (*event == nullptr) *event = new EventHandle(std::make_shared<EventState>());
    const EventHandle state = *static_cast<EventHandle*>(*event);
    stream_of(stream).enqueue([state, version = state->record()] { state->reach(version); });
  }
  void block(void* event, const c10::Stream& stream) const override {
    const EventHandle state = *static_cast<EventHandle*>(event);
    stream_of(stream).enqueue([state, version = state->recorded()] { state->wait_for(version); });
  }
  bool queryEvent(void* event) const override { return state_of(event).is_reached(); }
  void synchronizeEvent(void* event) const override { state_of(event).wait_for(state_of(event).recorded()); }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete static_cast<EventHandle*>(event);
  }
};

// Memory and the stream whose order decides when it is given back.
struct Block {
  void* data;
  size_t nbytes;
  SimulatedStream* stream;
};

void free_in_stream_order(void* context) {
  std::unique_ptr<Block> block(static_cast<Block*>(context));
  block->stream->enqueue([block = *block] {
    std::memset(block.data, 0xff, block.nbytes);
    std::free(block.data);
  });
}

struct SimulatedAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t nbytes) override {
    const c10::Device device = SimulatedGuard::device_at(current().device);
    if (nbytes == 0) return {nullptr, device};
    void* data = std::malloc(nbytes);
    auto* block = new Block{data, nbytes, &stream_of(device.index(), current_stream_id(device))};
    return {data, block, &free_in_stream_order, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, size_t nbytes) const override { default_copy_data(to, from, nbytes); }
};

at::Tensor on_device(c10::optional<at::Device> device, const std::function<at::Tensor(c10::Allocator&)>& make) {
  static SimulatedAllocator allocator;
  const auto previous = current().device;
  if (device && device->has_index()) current().device = device->index();
  at::Tensor made = make(allocator);
  current().device = previous;
  return made;
}

at::Tensor empty(at::IntArrayRef size, c10::optional<at::ScalarType> dtype, c10::optional<at::Layout>,
                 c10::optional<at::Device> device, c10::optional<bool>, c10::optional<at::MemoryFormat> format) {
  return on_device(device, [&](c10::Allocator& allocator) -> at::Tensor {
    return at::detail::empty_generic(size, &allocator, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                     c10::dtype_or_default(dtype), format);
  });
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, c10::optional<at::ScalarType> dtype,
                         c10::optional<at::Layout>, c10::optional<at::Device> device, c10::optional<bool>) {
  return on_device(device, [&](c10::Allocator& allocator) -> at::Tensor {
    return at::detail::empty_strided_generic(
        size, stride, &allocator, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), c10::dtype_or_default(dtype));
  });
}

// The same memory, as the host sees it. Does not keep it alive, just as a kernel does not.
at::Tensor memory_of(const at::Tensor& tensor) {
  if (tensor.is_cpu()) return tensor;
  return at::from_blob(tensor.unsafeGetTensorImpl()->mutable_data(), tensor.sizes(), tensor.strides(),
                       at::TensorOptions(tensor.scalar_type()));
}

SimulatedStream& current_stream_of(const at::Tensor& tensor) {
  return stream_of(tensor.device().index(), current_stream_id(tensor.device()));
}

at::Tensor& copy(at::Tensor& self, const at::Tensor& source, bool non_blocking) {
  SimulatedStream& stream = current_stream_of(self.is_cpu() ? source : self);
  const bool from_host = source.is_cpu();
  at::Tensor from = from_host && !non_blocking ? source.clone() : memory_of(source);
  stream.enqueue([to = memory_of(self), from] { to.copy_(from); });
  if (self.is_cpu() && !non_blocking) stream.synchronize();
  return self;
}

at::Tensor& zero(at::Tensor& self) {
  current_stream_of(self).enqueue([to = memory_of(self)] { to.zero_(); });
  return self;
}

at::Tensor& fill(at::Tensor& self, const at::Scalar& value) {
  current_stream_of(self).enqueue([to = memory_of(self), value] { to.fill_(value); });
  return self;
}

// In place, or by a number: of one shape.
at::Tensor& multiply(const at::Tensor& self, const at::Tensor& other, at::Tensor& out) {
  current_stream_of(out).enqueue(
      [from = memory_of(self), by = memory_of(other), to = memory_of(out)]() mutable { at::mul_out(to, from, by); });
  return out;
}

void register_device() {
  static SimulatedGuard guard;
  c10::impl::registerDeviceGuard(c10::kPrivateUse1, &guard);
  static torch::Library kernels(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  kernels.impl("empty.memory_format", &empty);
  kernels.impl("empty_strided", &empty_strided);
  kernels.impl("as_strided", &at::native::as_strided_tensorimpl);
  kernels.impl("view", &at::native::view);
  kernels.impl("copy_", &copy);
  kernels.impl("zero_", &zero);
  kernels.impl("fill_.Scalar", &fill);
  kernels.impl("mul.out", &multiply);
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
