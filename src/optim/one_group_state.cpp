#include "optim/one_group_state.h"

#include <c10/util/Exception.h>

#include <utility>

namespace fsdp::optim {

OneGroupState::OneGroupState(std::string optimizer, const std::vector<at::Tensor>& parameters)
    : name_(std::move(optimizer)), parameters_(parameters) {
  for (size_t i = 0; i < parameters.size(); ++i) positions_.emplace(parameters[i].unsafeGetTensorImpl(), i);
}

std::optional<size_t> OneGroupState::position(const at::Tensor& leaf) const {
  const auto found = positions_.find(leaf.unsafeGetTensorImpl());
  return found == positions_.end() ? std::nullopt : std::optional(found->second);
}

size_t OneGroupState::own_position(const at::Tensor& leaf) const {
  const std::optional<size_t> at = position(leaf);
  TORCH_CHECK(at, name_, ": a tensor of shape ", leaf.sizes(), " is not a leaf of this optimizer");
  return *at;
}

void OneGroupState::check_group(size_t group) const {
  TORCH_CHECK(group == 0, name_, ": has only parameter group 0, not ", group);
}

}  // namespace fsdp::optim
