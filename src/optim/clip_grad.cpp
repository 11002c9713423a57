// ShardedModule::clip_grad_norm_: the norm over all ranks, and the same scaling on each of them.
#include <ATen/ops/full.h>

#include <cmath>
#include <cstring>

#include "engine/engine.h"
#include "fsdp/fully_shard.h"
#include "optim/clip_scale.h"
#include "optim/norm_sum.h"

namespace fsdp {
namespace {

std::vector<at::Tensor> leaves_of(const Engine& engine, const FlatParameter& flat) {
  return engine.options().use_orig_params ? flat.original_leaves() : std::vector<at::Tensor>{flat.flat_leaf()};
}

void add_gradients(const Engine& engine, const FlatParameter& flat, NormSum& sum) {
  for (const at::Tensor& leaf : leaves_of(engine, flat)) {
    sum.add(norm_of(leaf.grad(), sum.type));
  }
}

// The sum of all ranks' parts, added in rank order: the same bits on every rank.
double combine(Communicator& communicator, NormSum local) {
  std::string mine(reinterpret_cast<const char*>(&local.sum), sizeof(double));
  NormSum total(local.type);
  for (const std::string& bytes : communicator.all_gather_bytes(mine, {"clip_grad_norm_", 0, Pass::kUser})) {
    double part = 0;
    std::memcpy(&part, bytes.data(), sizeof(double));
    total.merge(part);
  }
  return total.sum;
}

}  // namespace

at::Tensor ShardedModule::grad_norm(double norm_type, bool error_if_nonfinite) {
  TORCH_CHECK(norm_type > 0, "fsdp: grad_norm: norm_type ", norm_type, " must be positive");
  at::NoGradGuard no_grad;
  engine().notice_cleared_gradients();
  NormSum sharded(norm_type), replicated(norm_type);
  bool any_sharded = false;  // the same on all ranks
  for (const auto& unit : engine().units()) {
    for (const auto& flat : unit->flat_parameters()) {
      bool is_sharded = flat->position().factor > 1;
      any_sharded |= is_sharded;
      add_gradients(engine(), *flat, is_sharded ? sharded : replicated);
    }
  }
  NormSum total(norm_type);
  total.merge(any_sharded ? combine(engine().communicator(), sharded) : sharded.sum);
  total.merge(replicated.sum);
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
