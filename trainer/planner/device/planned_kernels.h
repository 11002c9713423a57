// The kernels of a plan: they make results and report the call, but compute nothing.
//
// They serve all operators that the CPU has a kernel for, on the planned device and on the CPU, except views and what
// reads no memory. Results have the shapes of result_shapes.h. A number that is read from a tensor is 1, so that losses
// and norms are finite and gradients are not clipped.
#pragma once

namespace fsdp::planner {

// Must be called only once in a process, after register_memory_kernels().
void register_planned_kernels();

}  // namespace fsdp::planner
