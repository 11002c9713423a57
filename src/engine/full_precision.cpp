#include "engine/full_precision.h"

#include <ATen/core/grad_mode.h>

#include "torch_seams/gradient_hooks.h"

namespace fsdp::engine {
namespace {

void check_may_switch(Unit& unit) {
  base::MutexLock lock(unit.mutex);
  TORCH_CHECK(
      !unit.buffers.gathered(), "fsdp: ", unit.where(),
      ": full precision cannot be switched while its parameters are in use (inside pin() or summon_full_params)");
  for (size_t i = 0; i < unit.flat_parameters().size(); ++i) {
    const FlatGradient* gradient = unit.gradients().of(i);
    TORCH_CHECK(!gradient || !gradient->accumulating(), "fsdp: ", unit.where(),
                ": full precision cannot be switched while gradients are accumulated without communication");
  }
}

}  // namespace

FullPrecision::FullPrecision(UnitContext& context, UnitTree& tree, Gatherer& gatherer, GradientFlow& gradients)
    : context_(context), tree_(tree), gatherer_(gatherer), gradients_(gradients) {}

void FullPrecision::absorb(const FullPrecision& inner) {
  buffers_.insert(buffers_.end(), inner.buffers_.begin(), inner.buffers_.end());
}

void FullPrecision::set(bool on) {
  if (context_.full_precision == on) return;
  TORCH_CHECK(!seams::in_backward(), "fsdp: full precision cannot be switched during backward");
  gatherer_.reshard_all();
  gradients_.reducer().finish_all();
  for (const auto& unit : tree_.units()) check_may_switch(*unit);
  for (const auto& unit : tree_.units()) {
    base::MutexLock lock(unit->mutex);
    unit->versions.invalidate_saved_values();
    unit->set_full_precision(on);
  }
  for (const CastBuffer& cast : buffers_) {
    at::NoGradGuard no_grad;
    cast.buffer.set_data(cast.buffer.to(on ? cast.original : cast.low));
  }
  context_.full_precision = on;
}

}  // namespace fsdp::engine
