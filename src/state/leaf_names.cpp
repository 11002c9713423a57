#include "state/leaf_names.h"

#include <c10/util/Exception.h>

#include "state/held_part.h"

namespace fsdp {

void check_leaf(bool is_of_model, const at::Tensor& leaf) {
  TORCH_CHECK(is_of_model, "a leaf of the optimizer, of shape ", leaf.sizes(),
              ", is none of the model's: build the optimizer on ShardedModule::parameters()");
}

LeafNames::LeafNames(const ShardedModule& model) {
  for (const HeldPart& part : held_parts(model)) {
    names_[part.leaf.unsafeGetTensorImpl()].push_back(part.fqn);
  }
}

const std::vector<std::string>& LeafNames::of(const at::Tensor& leaf) const {
  const auto found = names_.find(leaf.unsafeGetTensorImpl());
  check_leaf(found != names_.end(), leaf);
  return found->second;
}

}  // namespace fsdp
