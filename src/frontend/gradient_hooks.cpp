#include "fsdp/gradient_hooks.h"

#include <utility>

#include "engine/engine.h"

namespace fsdp {

void GradientHooks::set_gradient_hook(GradientHook hook) {
  engine_->current().gradients().settings().gradient_hook = std::move(hook);
}

void GradientHooks::set_communication_hook(CommunicationHook hook) {
  engine_->current().gradients().settings().communication_hook = std::move(hook);
}

void GradientHooks::set_unit_reduced_hook(UnitReducedHook hook) {
  engine_->current().gradients().settings().unit_reduced_hook = std::move(hook);
}

}  // namespace fsdp
