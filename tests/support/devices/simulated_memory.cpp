#include "support/devices/simulated_memory.h"

#include <ATen/EmptyTensor.h>
#include <c10/core/impl/alloc_cpu.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>

#include "support/devices/simulated_device.h"

namespace fsdp::testing {
namespace {

struct Current {
  c10::DeviceIndex device = 0;
  std::array<c10::StreamId, kSimulatedDevices> streams{};
};
Current& current() {
  thread_local Current value;
  return value;
}

// Memory, and the stream in whose order it is released.
struct Block {
  void* data;
  size_t nbytes;
  SimulatedStream* stream;
  std::mutex mutex;
  std::vector<SimulatedStream*> users;
};

void free_in_stream_order(void* context) {
  std::unique_ptr<Block> block(static_cast<Block*>(context));
  for (SimulatedStream* user : block->users) {
    auto used = std::make_shared<SimulatedEvent>();
    SimulatedEvent::record(used, *user);
    SimulatedEvent::block(used, *block->stream);
  }
  block->stream->enqueue(
      [data = block->data, nbytes = block->nbytes] {
        std::memset(data, 0xff, nbytes);
        c10::free_cpu(data);
      },
      Lateness::kNowAndThen);
}

struct SimulatedAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t nbytes) override {
    return allocate_simulated(nbytes, {c10::kPrivateUse1, current().device});
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, size_t nbytes) const override { default_copy_data(to, from, nbytes); }
};

const c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

template <typename Make>
at::Tensor on_device(c10::Device device, const Make& make) {
  static SimulatedAllocator& allocator = *new SimulatedAllocator;
  const auto previous = std::exchange(current().device, with_current_index(device).index());
  at::Tensor made = make(allocator);
  current().device = previous;
  return made;
}

class PinnedMemory final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t nbytes) override {
    void* data = c10::alloc_cpu(std::max<size_t>(nbytes, 1));
    std::lock_guard lock(mutex_);
    ends_[static_cast<char*>(data)] = static_cast<char*>(data) + nbytes;
    return {data, data, &PinnedMemory::free, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &PinnedMemory::free; }
  void copy_data(void* to, const void* from, size_t nbytes) const override { default_copy_data(to, from, nbytes); }

  bool contains(const void* data) {
    std::lock_guard lock(mutex_);
    auto after = ends_.upper_bound(static_cast<char*>(const_cast<void*>(data)));
    return after != ends_.begin() && data < std::prev(after)->second;
  }
  static PinnedMemory& get() {
    static PinnedMemory& memory = *new PinnedMemory;
    return memory;
  }

 private:
  static void free(void* data) {
    {
      std::lock_guard lock(get().mutex_);
      get().ends_.erase(static_cast<char*>(data));
    }
    c10::free_cpu(data);
  }

  std::mutex mutex_;
  std::map<char*, char*> ends_;  // by begin address
};

}  // namespace

c10::DeviceIndex& current_index() { return current().device; }
c10::Device with_current_index(c10::Device device) {
  return {device.type(), device.has_index() ? device.index() : current().device};
}
c10::StreamId& current_stream_id(c10::Device device) {
  return current().streams.at(static_cast<size_t>(with_current_index(device).index()));
}

c10::DataPtr allocate_simulated(size_t nbytes, c10::Device device) {
  const c10::Device indexed = with_current_index(device);
  if (nbytes == 0) return {nullptr, indexed};
  void* data = c10::alloc_cpu(nbytes);
  auto* block = new Block{data, nbytes, &current_simulated_stream(indexed), {}, {}};
  return {data, block, &free_in_stream_order, indexed};
}

void record_use_on_stream(const c10::DataPtr& data, SimulatedStream& stream) {
  if (data.get_deleter() != &free_in_stream_order) return;
  auto* block = static_cast<Block*>(data.get_context());
  std::lock_guard lock(block->mutex);
  const bool known = std::find(block->users.begin(), block->users.end(), &stream) != block->users.end();
  if (&stream != block->stream && !known) block->users.push_back(&stream);
}

at::Tensor empty_simulated(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType dtype, c10::Device device) {
  return on_device(device, [&](c10::Allocator& allocator) -> at::Tensor {
    return at::detail::empty_strided_generic(sizes, strides, &allocator, kKeys, dtype);
  });
}

at::Tensor empty_simulated(at::IntArrayRef sizes, std::optional<at::MemoryFormat> format, at::ScalarType dtype,
                           c10::Device device) {
  return on_device(device, [&](c10::Allocator& allocator) -> at::Tensor {
    return at::detail::empty_generic(sizes, &allocator, kKeys, dtype, format);
  });
}

at::Tensor host_tensor(c10::Storage storage, const at::Tensor& geometry, int64_t offset) {
  auto made = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU),
                                                       geometry.dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(geometry.sizes(), geometry.strides(), offset);
  return made;
}

at::Tensor HostViews::of(const at::Tensor& tensor) {
  for (const auto& [impl, view] : tensors_) {
    if (impl == tensor.unsafeGetTensorImpl()) return view;
  }
  const c10::StorageImpl* key = tensor.storage().unsafeGetStorageImpl();
  auto known = std::find_if(storages_.begin(), storages_.end(), [&](const auto& entry) { return entry.first == key; });
  if (known == storages_.end()) {
    c10::DataPtr data(tensor.storage().mutable_data(), c10::Device(c10::kCPU));
    c10::Storage storage(c10::Storage::use_byte_size_t(), tensor.storage().nbytes(), std::move(data));
    known = storages_.insert(storages_.end(), {key, std::move(storage)});
  }
  tensors_.emplace_back(tensor.unsafeGetTensorImpl(), host_tensor(known->second, tensor, tensor.storage_offset()));
  return tensors_.back().second;
}

c10::Allocator* pinned_memory_allocator() { return &PinnedMemory::get(); }
bool is_pinned_memory(const void* data) { return PinnedMemory::get().contains(data); }

}  // namespace fsdp::testing
