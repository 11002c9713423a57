#include "engine/passes.h"

#include <algorithm>
#include <utility>

#include "comm/checked/collective_monitor.h"
#include "torch_seams/gradient_hooks.h"

namespace fsdp::engine {

Passes::Passes(const UnitContext& context, Preparation& preparation, MemoryAccount& memory, Gatherer& gatherer,
               GradientFlow& gradients, Monitors monitors, std::function<std::shared_ptr<void>()> owner)
    : context_(context),
      preparation_(preparation),
      memory_(memory),
      gatherer_(gatherer),
      gradients_(gradients),
      monitors_(std::move(monitors)),
      owner_(std::move(owner)),
      backward_({[this] { begin_backward(); }, [this] { finish_backward(); }, [this] { discard_captures(); }}) {}

void Passes::note_visit() {
  if (!seams::in_backward()) steps_.note_forward();
}

void Passes::begin_backward() {
  steps_.begin_backward();
  gatherer_.end_pass(Pass::kForward);
  gradients_.begin_backward();
  if (context_.options.overlap.backward_prefetch == BackwardPrefetch::kPre) {
    gatherer_.prefetch();  // during the backward of the loss and of the root's last layers
  }
}

void Passes::finish_backward() {
  memory_.explaining([] { return "reducing gradients at the end of backward"; }, [&] { gradients_.finish_backward(); });
  gatherer_.release_after_backward([this](const Unit& unit) { return gradients_.stays_gathered_after_backward(unit); });
  gatherer_.end_pass(Pass::kBackward);
  memory_.reserve(std::max(gatherer_.largest_window(Pass::kForward), gatherer_.largest_window(Pass::kBackward)),
                  gradients_.reducer().largest_window());
  const bool ends_step = gradients_.syncs_any();
  steps_.end_backward(ends_step);
  if (ends_step) {
    for (const auto& monitor : monitors_) monitor->next_step();
  }
}

void Passes::discard_captures() {
  steps_.abandon_backward();
  gatherer_.end_pass(Pass::kBackward);
  gradients_.discard_captures();
}

void Passes::settle_gradients() {
  backward_.observe(owner_());
  gradients_.settle();
}

void Passes::reduce_accumulated() {
  TORCH_CHECK(!seams::in_backward(), "fsdp: reduce_gradients() was called while backward runs");
  preparation_.ensure();
  observe();
  begin_backward();
  const bool reduces = gradients_.syncs_any();
  finish_backward();
  TORCH_CHECK(reduces,
              "fsdp: reduce_gradients() was called where backward passes do not reduce gradients, as inside no_sync()");
}

void Passes::discard_accumulated() {
  backward_.observe(owner_());
  gradients_.notice_cleared();
  gradients_.discard_accumulated();
}

void Passes::reset() {
  discard_captures();
  backward_.observe(owner_());
  gradients_.discard_accumulated();
  gatherer_.reshard_all();
}

}  // namespace fsdp::engine
