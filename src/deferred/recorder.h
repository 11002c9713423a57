// Records operators of a deferred initialisation instead of running them.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace fsdp::deferred {

// Whether this thread is inside a DeferredInitGuard.
bool is_recording();
// Get and set the number of nested guards of this thread.
int recording_depth();
void set_recording_depth(int depth);

// Called for each operator that reaches the sharded key, with its arguments on the stack. Returns true if the operator
// was recorded and its results are on the stack. Returns false if the operator must run as usual; deferred tensors in
// its arguments then have memory, if the operator needs it.
bool intercept(const c10::OperatorHandle& op, torch::jit::Stack& stack);

}  // namespace fsdp::deferred
