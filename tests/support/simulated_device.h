// A device with streams, without hardware: tests see whether what runs on streams is ordered by events.
//
// Its tensors (device type PrivateUse1) lie in host memory. A stream is a thread that does what was enqueued on it, in
// order, a little late; so a missing wait shows as wrong data. Memory is given back in the order of the stream that was
// current when it was allocated, as CUDA's caching allocator does, and overwritten then.
//
// It has every operator that the CPU has, with the same results to the bit; see simulated_fallback.h. Random numbers
// come from the CPU's default generator. Copies from pinned host memory read it when the stream reaches them.
//
// LibTorch takes it for the process's accelerator from then on: autograd orders no other device's streams.
//
// LibTorch runs the backward passes on one device one after the other, in one thread: ranks that are threads and train
// need a device each, as they do with GPUs.
#pragma once

#include <c10/core/Device.h>

#include <functional>

namespace fsdp::testing {

constexpr int kSimulatedDevices = 4;

// Registers the device with LibTorch, once in a process, and returns its device `index`.
c10::Device simulated_device(int index = 0);

// Enqueues `work` on the stream whose native handle this is.
void enqueue_on_simulated_stream(void* native_stream, std::function<void()> work);

}  // namespace fsdp::testing
