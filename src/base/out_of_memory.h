// Whether an error says that memory is wanting.
#pragma once

#include <exception>

namespace fsdp {

// True for c10::OutOfMemoryError (devices), std::bad_alloc, and what LibTorch's allocator for the CPU throws.
bool is_out_of_memory(const std::exception& error);

}  // namespace fsdp
