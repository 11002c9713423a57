#include "models/recomputed_flops.h"

#include <algorithm>

#include "recompute/operator_selection.h"

namespace fsdp::models {
namespace {

bool keeps(const CheckpointPolicy& policy, ProductKind kind) {
  const recompute::OperatorSelection* selection = policy.options().save_ops.selection();
  if (selection == nullptr) return false;
  switch (kind) {
    case ProductKind::kMm:
      return selection->contains("aten::mm");
    case ProductKind::kAddmm:
      return selection->contains("aten::addmm");
    case ProductKind::kBmm:
      return selection->contains("aten::bmm");
    case ProductKind::kSdpa:
      return selection->contains_any_of("aten::_scaled_dot_product_");
    case ProductKind::kSdpaOrBmm:
      return keeps(policy, ProductKind::kSdpa) || keeps(policy, ProductKind::kBmm);
    case ProductKind::kConvolution:
      return selection->contains("aten::convolution");
  }
  return false;
}

}  // namespace

double sum_of(const std::vector<Products>& block) {
  double sum = 0;
  for (const Products& products : block) sum += products.flops;
  return sum;
}

double recomputed_flops(const CheckpointPolicy& policy, int64_t index, const std::vector<Products>& block) {
  if (!policy.applies_to(index)) return 0;
  double sum = 0;
  for (const Products& products : block) sum += keeps(policy, products.kind) ? 0 : products.flops / 3;
  return sum;
}

double recomputed_flops_of_all(const CheckpointPolicy& policy, int64_t count, const std::vector<Products>& block) {
  double sum = 0;
  for (int64_t index = 0; index < count; ++index) sum += recomputed_flops(policy, index, block);
  return sum;
}

}  // namespace fsdp::models
