#include "state/leaf_names.h"

#include <c10/util/Exception.h>

namespace fsdp {

void check_leaf(bool is_of_model, const at::Tensor& leaf) {
  TORCH_CHECK(is_of_model, "a leaf of the optimizer, of shape ", leaf.sizes(),
              ", is none of the model's: build the optimizer on ShardedModule::parameters()");
}

}  // namespace fsdp
