// ShardedModule::clip_grad_norm_: the norm over all ranks, and the same scaling on each of them.
#include <ATen/ops/full.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "fsdp/fully_shard.h"
#include "optim/agree.h"
#include "optim/clip_scale.h"
#include "optim/norm_sum.h"

namespace fsdp {
namespace {

void add_gradients(Unit& unit, NormSum& sum) {
  for (size_t i = 0; i < unit.flat_parameters().size(); ++i) {
    const FlatGradient* gradient = unit.gradient(i);
    for (const at::Tensor& leaf : gradient ? gradient->leaves().leaves() : std::vector<at::Tensor>()) {
      sum.add(norm_of(leaf.grad(), sum.type));
    }
  }
}

}  // namespace

at::Tensor ShardedModule::grad_norm(double norm_type, bool error_if_nonfinite) {
  TORCH_CHECK(norm_type > 0, "fsdp: grad_norm: norm_type ", norm_type, " must be positive");
  at::NoGradGuard no_grad;
  engine().settle_gradients();
  // What each rank holds, by the group over which it is to be added up: the same groups in the same order on all ranks.
  // Replicas hold the same gradients. Null: what this rank holds is everything.
  std::vector<std::pair<Communicator*, NormSum>> parts;
  for (const auto& unit : engine().units()) {
    Communicator* group = unit->groups().shard.get();
    auto part = std::find_if(parts.begin(), parts.end(), [&](const auto& known) { return known.first == group; });
    if (part == parts.end()) {
      part = parts.insert(parts.end(), {group, NormSum(norm_type)});
    }
    add_gradients(*unit, part->second);
  }
  NormSum total(norm_type);
  for (auto& [group, part] : parts) {
    add_up(group, {&part}, "clip_grad_norm_");
    total.merge(part.sum);
  }
  double norm = total.norm();
  TORCH_CHECK(!error_if_nonfinite || std::isfinite(norm), "fsdp: the norm of the gradients is ", norm);
  return at::full({}, norm, at::kDouble);
}

at::Tensor ShardedModule::clip_grad_norm_(double max_norm, double norm_type, bool error_if_nonfinite) {
  TORCH_CHECK(max_norm > 0, "fsdp: clip_grad_norm_: max_norm ", max_norm, " must be positive");
  at::NoGradGuard no_grad;
  at::Tensor norm = grad_norm(norm_type, error_if_nonfinite);
  double scale = clip_scale(max_norm, norm.item<double>());
  if (scale != 1.0) {
    for (const at::Tensor& leaf : parameters()) {
      if (leaf.grad().defined()) {
        leaf.mutable_grad().mul_(scale);
      }
    }
  }
  return norm;
}

}  // namespace fsdp
