// Memory for large tensors that live for a moment only.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace fsdp {

// `nbytes` uninitialised bytes on a device. On the CPU large ones are mapped for themselves and given back to the
// system when they go: from the heap, whose holes smaller tensors come to lie in, each would take new memory.
at::Tensor passing_bytes(int64_t nbytes, c10::Device device);

}  // namespace fsdp
