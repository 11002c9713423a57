// A device with streams, without hardware: tests see whether what runs on streams is ordered by events.
//
// Its tensors (device type PrivateUse1) lie in host memory. A stream is a thread that does what was enqueued on it, in
// order, each item a little late; so a missing wait shows as wrong data. Memory is given back in the order of the
// stream that was current when it was allocated, as CUDA's caching allocator does, and overwritten then.
// There are kernels for what communication needs: empty, views, copies (also from and to the host), zero_, fill_,
// products.
#pragma once

#include <c10/core/Device.h>

#include <functional>

namespace fsdp::testing {

// Registers the device with LibTorch, once in a process, and returns its device `index` (there are two).
c10::Device simulated_device(int index = 0);

// Enqueues `work` on the stream whose native handle this is.
void enqueue_on_simulated_stream(void* native_stream, std::function<void()> work);

}  // namespace fsdp::testing
