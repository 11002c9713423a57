// Kernels that stay registered for as long as the process lives.
#pragma once

#include <c10/core/DispatchKey.h>
#include <torch/library.h>

namespace fsdp::planner {

// Returns a new library for kernels of this namespace ("aten", or "_" for a fallback) and key. It is never destroyed:
// a destroyed one would take its kernels back while other static objects may still compute.
torch::Library& kept_library(const char* space, c10::DispatchKey key);

}  // namespace fsdp::planner
