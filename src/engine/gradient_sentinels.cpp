#include "engine/gradient_sentinels.h"

#include <vector>

#include "engine/unit.h"

namespace fsdp::engine {

void GradientSentinels::install(flat::FlatParameter& flat, int64_t index) {
  base::MutexLock lock(mutex_);
  install_locked(flat, index);
}

void GradientSentinels::install_locked(flat::FlatParameter& flat, int64_t index) {
  flat::ShardedParameter& p = flat.parameters()[index];
  at::Tensor& gradient = p.tensor.mutable_grad();
  if (!gradient.defined()) {
    gradient = flat.make_gradient_sentinel(index, [parameter = p.owner] {
      if (Unit* unit = unit_of(*parameter)) unit->sentinels.gone(parameter->index);
    });
    p.sentinel_installed = true;
    return;
  }
  TORCH_CHECK(seams::storage_owner(gradient) && seams::storage_owner(gradient) == p.sentinel_owner._unsafe_get_target(),
              "fsdp: ", unit_.where(), ": a gradient was assigned to the module's parameter '", p.fqn,
              "'. Gradients live in the shards: assign to the grad() of ShardedModule::parameters()");
}

void GradientSentinels::install_missing(flat::FlatParameter& flat, const ParameterMask& captured) {
  base::MutexLock lock(mutex_);
  for (int64_t k = 0; k < flat.layout().num_parameters(); ++k) {
    if (captured.test(k) && !flat.parameters()[k].sentinel_installed) install_locked(flat, k);
  }
}

ParameterMask GradientSentinels::installed(const flat::FlatParameter& flat) const {
  base::MutexLock lock(mutex_);
  ParameterMask mask(flat.layout().num_parameters());
  for (int64_t k = 0; k < flat.layout().num_parameters(); ++k) {
    if (flat.parameters()[k].sentinel_installed) mask.set(k);
  }
  return mask;
}

void GradientSentinels::clear_record(flat::FlatParameter& flat, int64_t index) {
  base::MutexLock lock(mutex_);
  flat.parameters()[index].sentinel_installed = false;
}

void GradientSentinels::notice_cleared(flat::FlatParameter& flat, FlatGradient& gradient) {
  std::vector<int64_t> cleared;
  {
    base::MutexLock lock(mutex_);
    for (int64_t k = 0; k < flat.layout().num_parameters(); ++k) {
      flat::ShardedParameter& p = flat.parameters()[k];
      if (p.sentinel_installed && !p.tensor.grad().defined()) {
        p.sentinel_installed = false;
        cleared.push_back(k);
      }
    }
  }
  for (int64_t k : cleared) gradient.clear_leaf(k);
}

// Clears the shard's gradient at once, so that a step that follows sees no gradient, unless another sentinel is
// installed by now.
void GradientSentinels::gone(int64_t index) {
  const Unit::Place at = unit_.place(index);
  {
    base::MutexLock lock(mutex_);
    flat::ShardedParameter& p = at.flat.parameters()[at.parameter];
    if (!p.sentinel_installed || !p.sentinel_owner.expired()) return;
    p.sentinel_installed = false;
  }
  at.gradient->clear_leaf(at.parameter);
}

}  // namespace fsdp::engine
