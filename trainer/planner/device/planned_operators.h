// The operators that plans take for one kernel each.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

namespace fsdp::planner {

// Whether plans take it for one kernel: an operator that has a kernel for the CPU, chooses one by the device inside, or
// changes a list in place, unless it makes a view, reads no memory, or returns something other than tensors. Must not
// be asked about operators whose kernels register_planned_kernels() has replaced.
bool is_planned(const c10::OperatorHandle& op);

}  // namespace fsdp::planner
