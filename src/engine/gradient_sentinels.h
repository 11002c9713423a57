// Stand-ins for gradients on the module's own parameters, which show whether user code has cleared them.
#pragma once

#include "base/mutex.h"
#include "engine/parameter_mask.h"

namespace fsdp::flat {
class FlatParameter;
}  // namespace fsdp::flat

namespace fsdp::engine {

class FlatGradient;
class Unit;

// Gradients live in the shards. While a shard has one, grad() of the module's parameter is a sentinel: a tensor of the
// full shape without memory. If the user clears it (zero_grad on the module, or on an optimizer of it), the shard's
// gradient is cleared as well.
//
// Threads: safe. A sentinel may be dropped on any thread.
class GradientSentinels {
 public:
  explicit GradientSentinels(Unit& unit) : unit_(unit) {}

  // Installs a sentinel as the gradient of a parameter, unless it has one. `index`: within `flat`. Throws if user code
  // has assigned a gradient.
  void install(flat::FlatParameter& flat, int64_t index) FSDP_EXCLUDES(mutex_);
  // Installs sentinels for all parameters in `captured` that have none, because their gradients came only from other
  // ranks.
  void install_missing(flat::FlatParameter& flat, const ParameterMask& captured) FSDP_EXCLUDES(mutex_);
  // Returns the parameters that have one.
  ParameterMask installed(const flat::FlatParameter& flat) const FSDP_EXCLUDES(mutex_);
  // Clears the record of a parameter's sentinel: its removal then does not clear the shard's gradient.
  void clear_record(flat::FlatParameter& flat, int64_t index) FSDP_EXCLUDES(mutex_);
  // Clears the shards' gradients of the parameters from which user code has removed the sentinel.
  void notice_cleared(flat::FlatParameter& flat, FlatGradient& gradient) FSDP_EXCLUDES(mutex_);

 private:
  void install_locked(flat::FlatParameter& flat, int64_t index) FSDP_REQUIRES(mutex_);
  void gone(int64_t index) FSDP_EXCLUDES(mutex_);

  Unit& unit_;
  mutable base::Mutex mutex_;  // guards sentinel_installed of the unit's parameters
};

}  // namespace fsdp::engine
