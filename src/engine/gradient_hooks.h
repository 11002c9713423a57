// Hooks on the module's parameters that hand their gradients to the engine.
#pragma once

namespace fsdp::flat {
struct ShardedParameter;
}  // namespace fsdp::flat

namespace fsdp::engine {

class Unit;

// Captures each gradient of a parameter of a unit, in place of its accumulation into grad(). Lost if the gradient
// accumulator is dropped (FlatParameter::set_dtypes); then it must be called again.
void hook_capture(flat::ShardedParameter& parameter);

// Adds hook_capture, and a check that stays on a parameter whose data was replaced: it throws when a gradient arrives.
void hook_gradients(flat::ShardedParameter& parameter);

}  // namespace fsdp::engine
