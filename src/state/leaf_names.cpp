#include "state/leaf_names.h"

#include <c10/util/Exception.h>

#include "state/held_part.h"

namespace fsdp {

LeafNames::LeafNames(const ShardedModule& model) {
  for (const HeldPart& part : held_parts(model)) {
    names_[part.leaf.unsafeGetTensorImpl()].push_back(part.fqn);
  }
}

const std::vector<std::string>& LeafNames::of(const at::Tensor& leaf) const {
  const auto found = names_.find(leaf.unsafeGetTensorImpl());
  TORCH_CHECK(found != names_.end(), "a leaf of the optimizer, of shape ", leaf.sizes(),
              ", is none of the model's: build the optimizer on ShardedModule::parameters()");
  return found->second;
}

}  // namespace fsdp
