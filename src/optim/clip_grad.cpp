// ShardedModule::clip_grad_norm_: computes the norm over all ranks and applies the same scaling on each of them.
#include <ATen/ops/full.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "fsdp/fully_shard.h"
#include "optim/agree.h"
#include "optim/clip_scale.h"
#include "optim/norm_sum.h"
#include "optim/scale_gradients.h"
#include "optim/whole_gradients.h"

namespace fsdp {
namespace {

// Adds this rank's gradients of a FlatParameter; null if it has none.
using AddGradients = std::function<void(const engine::FlatGradient* gradient, optim::NormSum& sum)>;

void add_read(const engine::FlatGradient* gradient, optim::NormSum& sum) {
  for (const at::Tensor& leaf : gradient ? gradient->leaves().leaves() : std::vector<at::Tensor>()) {
    sum.add(optim::norm_of(leaf.grad(), sum.type));
  }
}

// Adds the norm that the reduction of the gradients has computed, or reads the gradients if it is not known.
void add_seen(const engine::FlatGradient* gradient, optim::NormSum& sum) {
  const ReductionSummary seen = gradient ? gradient->leaves().summary() : ReductionSummary{};
  seen.known ? sum.merge(seen.squared_norm) : add_read(gradient, sum);
}

// Returns the norm over all ranks.
at::Tensor norm_over_ranks(engine::Engine& engine, double norm_type, const AddGradients& add, bool error_if_nonfinite) {
  at::NoGradGuard no_grad;
  engine.passes().settle_gradients();
  // The norm of each rank's gradients, by the groups over which it must be added up: the same groups in the same order
  // on all ranks. Replicas hold the same gradients.
  std::vector<std::pair<optim::NormGroups, optim::NormSum>> parts;
  std::vector<optim::WholeNorm> of_whole;  // with tensor parallelism
  for (const auto& unit : engine.units()) {
    for (size_t i = 0; i < unit->flat_parameters().size(); ++i) {
      const optim::NormGroups groups = optim::norm_groups(*unit, *unit->flat_parameters()[i]);
      auto part = std::find_if(parts.begin(), parts.end(), [&](const auto& known) { return known.first == groups; });
      if (part == parts.end()) part = parts.insert(parts.end(), {groups, optim::NormSum(norm_type)});
      const bool is_compared = engine.mesh().parts && !groups.parts;
      optim::NormSum own(norm_type);
      add(unit->gradients().kept(i), is_compared ? own : part->second);
      part->second.merge(own.sum);
      if (is_compared) of_whole.push_back({own.norm(), unit->flat_parameters()[i]->dtypes().compute});
    }
  }
  optim::NormSum total(norm_type);
  for (auto& [groups, part] : parts) {
    optim::add_up(groups, {&part}, "clip_grad_norm_");
    total.merge(part.sum);
  }
  optim::check_whole_gradients(engine, of_whole, total.norm());
  double norm = total.norm();
  TORCH_CHECK(!error_if_nonfinite || std::isfinite(norm), "fsdp: the norm of the gradients is ", norm,
              " (error_if_nonfinite is set)");
  return at::full({}, norm, at::kDouble);
}

}  // namespace

at::Tensor ShardedModule::grad_norm(double norm_type, bool error_if_nonfinite) {
  TORCH_CHECK(norm_type > 0, "fsdp: grad_norm: norm_type ", norm_type, " must be positive");
  return norm_over_ranks(engine(), norm_type, add_read, error_if_nonfinite);
}

at::Tensor ShardedModule::reduced_grad_norm(bool error_if_nonfinite) {
  return norm_over_ranks(engine(), 2.0, add_seen, error_if_nonfinite);
}

at::Tensor ShardedModule::clip_grad_norm_(double max_norm, double norm_type, bool error_if_nonfinite) {
  TORCH_CHECK(max_norm > 0, "fsdp: clip_grad_norm_: max_norm ", max_norm, " must be positive");
  at::NoGradGuard no_grad;
  at::Tensor norm = grad_norm(norm_type, error_if_nonfinite);
  optim::scale_gradients(parameters(), optim::clip_scale(max_norm, norm.item<double>()));
  return norm;
}

}  // namespace fsdp
