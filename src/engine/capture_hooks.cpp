#include "engine/capture_hooks.h"

#include "engine/engine.h"
#include "engine/membership.h"
#include "torch_seams/gradient_hooks.h"

namespace fsdp::engine {

// The hooks hold the owner instead of the unit, because they may outlive the unit.
void hook_capture(flat::ShardedParameter& parameter) {
  parameter.capture_hook =
      seams::add_gradient_capture(parameter.tensor, [owner = parameter.owner](const at::Tensor& gradient) {
        Unit* unit = unit_of(*owner);
        TORCH_CHECK(unit,
                    "fsdp: a gradient arrived at a parameter whose sharded module was destroyed: keep it until "
                    "backward has ended");
        if (unit->pending_cut()) {
          unit->engine().cut_before_backward(*unit);
          unit = unit_of(*owner);
        }
        unit->engine().capture(*unit, owner->index, gradient);
      });
}

void hook_gradients(flat::ShardedParameter& parameter) {
  if (parameter.requires_grad) hook_capture(parameter);
  seams::add_gradient_tripwire(parameter.tensor, [owner = parameter.owner] {
    Unit* unit = unit_of(*owner);
    if (!unit) return;
    const flat::ShardedParameter& arrived = unit->parameter(owner->index);
    check_membership(*unit, arrived);
    TORCH_CHECK(arrived.requires_grad, "fsdp: ", unit->where(), ": requires_grad of parameter '", arrived.fqn,
                "' was set while its unit was in use, too late for this forward and backward. Set it between steps");
  });
}

}  // namespace fsdp::engine
