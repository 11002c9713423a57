#include "engine/leaf_companions.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <c10/util/Exception.h>

#include <utility>

#include "torch_seams/shard_version.h"

namespace fsdp::engine {

void LeafCompanions::note(const at::Tensor& made, Likeness likeness, uint64_t leaf_version) {
  if (!made.is_inference()) {
    companions_.push_back(
        {WeakTensor(made.getIntrusivePtr()), std::move(likeness), seams::version_of(made), leaf_version});
  }
}

void LeafCompanions::check_unwritten(const std::string& where) const {
  for (const Companion& companion : companions_) {
    auto impl = companion.tensor.lock();
    if (!impl || companion.likeness.values == Likeness::Values::kCopy) continue;
    TORCH_CHECK(
        seams::version_of(at::Tensor(std::move(impl))) == companion.version, "fsdp: ", where, ": the tensor that ",
        companion.likeness.op,
        " made from a leaf of ShardedModule::parameters() was written "
        "to before units were cut (Options::auto_units): cutting changes the sizes of leaves, and optimizer state "
        "that is not constant cannot follow. Create such an optimizer after the first backward, call "
        "ShardedModule::cut_units first, or set AutoUnits::order");
  }
}

void LeafCompanions::follow(const at::Tensor& leaf, uint64_t leaf_version) const {
  at::NoGradGuard no_grad;
  for (const Companion& companion : companions_) {
    auto impl = companion.tensor.lock();
    const at::Tensor tensor = impl ? at::Tensor(std::move(impl)) : at::Tensor();
    if (!tensor.defined() || seams::version_of(tensor) != companion.version) continue;
    switch (companion.likeness.values) {
      case Likeness::Values::kUndefined:
        tensor.set_data(at::empty(leaf.sizes(), tensor.options()));
        break;
      case Likeness::Values::kConstant:
        tensor.set_data(at::full(leaf.sizes(), companion.likeness.constant, tensor.options()));
        break;
      case Likeness::Values::kCopy:
        if (companion.leaf_version == leaf_version) tensor.set_data(leaf.detach().clone());
        break;
    }
  }
}

}  // namespace fsdp::engine
