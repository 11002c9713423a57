// Memory of the simulated device, and pinned host memory.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <optional>
#include <utility>
#include <vector>

#include "support/devices/simulated_stream.h"

namespace fsdp::testing {

// The current device of this thread, and its current stream on each device.
c10::DeviceIndex& current_index();
c10::StreamId& current_stream_id(c10::Device device);
c10::Device with_current_index(c10::Device device);
inline SimulatedStream& current_simulated_stream(c10::Device device) {
  return simulated_stream(with_current_index(device).index(), current_stream_id(device));
}

// Allocates memory of a device, which is released in the order of the stream that is current now. It is aligned like
// LibTorch's CPU memory, because the bits of results may depend on the alignment.
c10::DataPtr allocate_simulated(size_t nbytes, c10::Device device);
// Delays the release of the memory until the work that is enqueued on `stream` when the owner frees it is done.
void record_use_on_stream(const c10::DataPtr& data, SimulatedStream& stream);
at::Tensor empty_simulated(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType dtype, c10::Device device);
at::Tensor empty_simulated(at::IntArrayRef sizes, std::optional<at::MemoryFormat> format, at::ScalarType dtype,
                           c10::Device device);

// Host tensors over the memory of device tensors. They do not keep it alive, just as a kernel does not. Tensors that
// share a storage, or are the same, do so on the host too.
class HostViews {
 public:
  at::Tensor of(const at::Tensor& tensor);

 private:
  std::vector<std::pair<const c10::TensorImpl*, at::Tensor>> tensors_;
  std::vector<std::pair<const c10::StorageImpl*, c10::Storage>> storages_;
};
// Returns a host tensor over `storage`; `offset` is in elements.
at::Tensor host_tensor(c10::Storage storage, const at::Tensor& geometry, int64_t offset);

c10::Allocator* pinned_memory_allocator();
bool is_pinned_memory(const void* data);

}  // namespace fsdp::testing
