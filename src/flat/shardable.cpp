#include "flat/shardable.h"

#include "torch_seams/dispatch_key.h"
#include "torch_seams/keyed_storage.h"

namespace fsdp::flat {
namespace {

bool belongs_to_a_unit(const at::Tensor& tensor) {
  if (!seams::has_sharded_key(tensor)) return false;
  const seams::StorageOwner* owner = seams::storage_owner(tensor);
  return !owner || owner->kind != seams::StorageOwner::Kind::kDeferred;
}

}  // namespace

void check_shardable(const at::Tensor& tensor, const std::string& fqn) {
  TORCH_CHECK(!belongs_to_a_unit(tensor), "fsdp: parameter '", fqn,
              "' is sharded already: a parameter cannot be in two units");
  TORCH_CHECK(!tensor.is_inference(), "fsdp: parameter '", fqn,
              "' was created in InferenceMode, so writes to it cannot be tracked: create the module outside of it");
  TORCH_CHECK(tensor.is_leaf(), "fsdp: parameter '", fqn, "' is not a leaf of the autograd graph");
  TORCH_CHECK(
      !tensor.key_set().has(c10::DispatchKey::Python), "fsdp: parameter '", fqn,
      "' is a tensor subclass with operators of its own (a wrapper of other tensors): it has no memory to shard");
  TORCH_CHECK(tensor.layout() == c10::Layout::Strided && !c10::isQIntType(tensor.scalar_type()), "fsdp: parameter '",
              fqn, "' has layout ", tensor.layout(), " and dtype ", tensor.scalar_type(),
              ": only dense, strided parameters can be sharded");
  TORCH_CHECK(!c10::isComplexType(tensor.scalar_type()), "fsdp: parameter '", fqn, "' has dtype ", tensor.scalar_type(),
              ": complex parameters are not supported; store real and imaginary parts");
  TORCH_CHECK(!tensor.grad().defined(), "fsdp: parameter '", fqn,
              "' already has a gradient: call zero_grad() before fully_shard");
}

}  // namespace fsdp::flat
