// requires_grad of parameters and leaves, which user code may change between steps.
#pragma once

namespace fsdp::engine {

class Unit;

// Whether requires_grad of one of the unit's parameters or leaves was changed since the engine last looked.
bool requires_grad_changed(const Unit& unit);

// Takes the changes over. Throws if gradients in progress or a flat leaf cannot follow. Must be called between steps,
// and under the unit's lock.
void follow_requires_grad(Unit& unit);

}  // namespace fsdp::engine
