#include "engine/preparation.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <vector>

#include "engine/agreement.h"
#include "engine/requires_grad.h"
#include "torch_seams/gradient_hooks.h"

namespace fsdp::engine {
namespace {

// At the first use, and not in fully_shard, because outer modules may be annotated after inner ones.
void warn_if_one_unit(const UnitContext& context, const UnitTree& tree) {
  if (context.options.could_have_units_below && tree.units().size() == 1 && context.options.mesh.size() > 1 &&
      reshards_after_forward(tree.units().front()->options().strategy)) {
    TORCH_WARN(
        "fsdp: one unit holds the whole model, so all of its parameters are gathered at once and sharding saves "
        "only optimizer and gradient memory. Set Options::auto_wrap_policy or annotate inner modules first");
  }
}

}  // namespace

Preparation::Preparation(const UnitContext& context, UnitTree& tree, MemoryAccount& memory, GradientFlow& gradients)
    : context_(context), tree_(tree), memory_(memory), gradients_(gradients) {}

void Preparation::prepare() {
  base::MutexLock lock(mutex_);
  if (done_) return;  // by another thread
  warn_if_one_unit(context_, tree_);
  compare_sharding(context_, tree_);
  memory_.share_shards();
  make_park_groups();
  gradients_.make_groups();
  done_ = true;
}

void Preparation::follow_requires_grad() {
  if (seams::in_backward()) return;
  const auto changed = [](const auto& unit) { return requires_grad_changed(*unit); };
  if (std::none_of(tree_.units().begin(), tree_.units().end(), changed)) return;
  gradients_.reducer().finish_all();
  invalidate();
  for (const auto& unit : tree_.units()) {
    base::MutexLock lock(unit->mutex);
    engine::follow_requires_grad(*unit);
  }
}

void Preparation::absorb(Preparation& inner) {
  base::MutexLock lock(mutex_);
  base::MutexLock lock_inner(inner.mutex_);
  park_groups_.merge(inner.park_groups_);
  invalidate();
}

void Preparation::make_park_groups() {
  for (const auto& unit : tree_.units()) {
    const std::optional<ReshardAfterForward>& reshard = unit->options().reshard_after_forward;
    const std::optional<int> size = reshard ? reshard->group_size() : std::nullopt;
    base::MutexLock lock(unit->mutex);
    if (!size || unit->buffers.park_group()) continue;
    const std::shared_ptr<Communicator>& group = unit->groups().shard;
    std::shared_ptr<Communicator>& smaller = park_groups_[{group.get(), *size}];
    if (!smaller) {
      std::vector<int> members(*size);
      std::iota(members.begin(), members.end(), group->rank() / *size * *size);
      smaller = group->subgroup(members, {"reshard_after_forward", static_cast<uint64_t>(*size), Pass::kSetup});
    }
    unit->buffers.set_park_group(smaller);
  }
}

}  // namespace fsdp::engine
