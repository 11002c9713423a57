// Records operators of deferred initialisation instead of running them.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace fsdp::deferred {

// Whether this thread builds under a DeferredInitGuard.
bool is_recording();
// Nested guards of this thread: how many there are, and setting that.
int recording_depth();
void set_recording_depth(int depth);

// Called for each operator of which the sharded key sees something, with its arguments on the stack. True: the operator
// was recorded, and its results are on the stack. False: it is to be run as usual; deferred tensors among its arguments
// have memory now, if it needs any.
bool intercept(const c10::OperatorHandle& op, torch::jit::Stack& stack);

}  // namespace fsdp::deferred
