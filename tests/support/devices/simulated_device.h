// A device with streams that needs no hardware, with which tests check that work on streams is ordered by events.
//
// Its tensors (device type PrivateUse1) lie in host memory. A stream is a thread that runs the work enqueued on it in
// order, a little late, so that a missing wait shows as wrong data. Memory is released in the order of the stream that
// was current when it was allocated, as in CUDA's caching allocator, and is then overwritten.
//
// The device has every operator that the CPU has, with bit-equal results; see simulated_fallback.h. Random numbers come
// from the CPU's default generator. Copies from pinned host memory read it when the stream reaches them.
//
// Once the device is registered, LibTorch treats it as the accelerator of the process: autograd orders no other
// device's streams.
//
// LibTorch runs the backward passes on one device one after the other, in one thread. Therefore ranks that are threads
// and train need a device each, as they do with GPUs.
#pragma once

#include <c10/core/Device.h>

#include <functional>

namespace fsdp::testing {

constexpr int kSimulatedDevices = 4;

// Registers the device type with LibTorch, once in a process, and returns device `index`.
c10::Device simulated_device(int index = 0);

// Enqueues `work` on the stream with this native handle.
void enqueue_on_simulated_stream(void* native_stream, std::function<void()> work);

}  // namespace fsdp::testing
