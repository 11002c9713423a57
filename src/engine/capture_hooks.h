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

// Adds hook_capture if the parameter requires a gradient, and a check that throws when a gradient arrives at a
// parameter whose data was replaced, or for which the engine expects none.
void hook_gradients(flat::ShardedParameter& parameter);

}  // namespace fsdp::engine
