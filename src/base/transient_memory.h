// Memory for large, short-lived tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace fsdp::base {

// Returns `nbytes` uninitialised bytes on a device. On the CPU, large blocks are mapped individually and returned to
// the system when they are freed. On the heap, smaller tensors would fill the holes that freed blocks leave, so that
// each new block would need new memory.
at::Tensor transient_bytes(int64_t nbytes, c10::Device device);

}  // namespace fsdp::base
