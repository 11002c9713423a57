#include "state/held_leaves.h"

#include <c10/util/Exception.h>

#include <unordered_map>
#include <utility>

namespace fsdp::state {

void check_leaf(bool is_of_model, const at::Tensor& leaf) {
  TORCH_CHECK(is_of_model, "a leaf of the optimizer, of shape ", leaf.sizes(),
              ", does not belong to the model: build the optimizer on ShardedModule::parameters()");
}

std::vector<std::vector<HeldLeaf>> held_leaves(std::vector<HeldPart> of_model, const OptimizerState& optimizer) {
  std::unordered_map<const at::TensorImpl*, std::vector<HeldPart>> parts;
  for (HeldPart& part : of_model) parts[part.leaf.unsafeGetTensorImpl()].push_back(std::move(part));
  std::vector<std::vector<HeldLeaf>> groups;
  for (const std::vector<at::Tensor>& group : optimizer.groups()) {
    groups.emplace_back();
    for (const at::Tensor& leaf : group) {
      const auto found = parts.find(leaf.unsafeGetTensorImpl());
      check_leaf(found != parts.end(), leaf);
      groups.back().push_back({leaf, found->second});
    }
  }
  return groups;
}

std::vector<ParameterGroup> parameter_groups(std::vector<HeldPart> of_model, const OptimizerState& optimizer) {
  std::vector<ParameterGroup> groups;
  for (const std::vector<HeldLeaf>& leaves : held_leaves(std::move(of_model), optimizer)) {
    ParameterGroup group{{}, optimizer.options(groups.size())};
    for (const HeldLeaf& leaf : leaves) {
      for (const HeldPart& part : leaf.parts) {
        if (group.parameters.empty() || group.parameters.back() != part.fqn) group.parameters.push_back(part.fqn);
      }
    }
    groups.push_back(std::move(group));
  }
  return groups;
}

}  // namespace fsdp::state
