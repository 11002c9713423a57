// Recognizes out-of-memory errors.
#pragma once

#include <exception>

namespace fsdp::base {

// Returns true for c10::OutOfMemoryError (devices), std::bad_alloc, and the error that LibTorch's CPU allocator throws.
bool is_out_of_memory(const std::exception& error);

}  // namespace fsdp::base
