#include "binding/given_optimizer.h"

#include <c10/util/Exception.h>

#include <utility>

namespace fsdp::python {
namespace {

// The option in which Adam and AdamW differ. It is a property of the optimizer, not a setting.
constexpr const char* kDecoupledWeightDecay = "decoupled_weight_decay";

}  // namespace

void GivenOptimizer::add_group(std::vector<at::Tensor> leaves, std::map<std::string, double> options) {
  groups_.push_back({std::move(leaves), std::move(options)});
}

void GivenOptimizer::give(const at::Tensor& leaf, LeafState state) {
  states_[leaf.unsafeGetTensorImpl()] = std::move(state);
}

std::vector<std::vector<at::Tensor>> GivenOptimizer::groups() const {
  std::vector<std::vector<at::Tensor>> leaves;
  for (const Group& group : groups_) leaves.push_back(group.leaves);
  return leaves;
}

std::optional<LeafState> GivenOptimizer::leaf(const at::Tensor& leaf) const {
  const auto found = states_.find(leaf.unsafeGetTensorImpl());
  if (found == states_.end()) return std::nullopt;
  return found->second;
}

void GivenOptimizer::set_leaf(const at::Tensor& leaf, const std::optional<LeafState>& state) {
  if (state) {
    states_[leaf.unsafeGetTensorImpl()] = *state;
  } else {
    states_.erase(leaf.unsafeGetTensorImpl());
  }
}

std::map<std::string, double> GivenOptimizer::options(size_t group) const { return group_at(group).options; }

void GivenOptimizer::set_options(size_t group, const std::map<std::string, double>& options) {
  check_options(group, options);
  groups_[group].options = options;
}

void GivenOptimizer::check_options(size_t group, const std::map<std::string, double>& options) const {
  const std::map<std::string, double>& own = group_at(group).options;
  for (const auto& [name, value] : options) {
    TORCH_CHECK(own.count(name) > 0, "it has no option '", name, "'");
  }
  for (const auto& [name, value] : own) {
    const auto found = options.find(name);
    TORCH_CHECK(found != options.end(), "its option '", name, "' is missing");
    TORCH_CHECK(name != kDecoupledWeightDecay || found->second == value, name, " is ", found->second, ", but ", value,
                " here: one is Adam, the other AdamW");
  }
}

const GivenOptimizer::Group& GivenOptimizer::group_at(size_t group) const {
  TORCH_CHECK(group < groups_.size(), "parameter group ", group, " of ", groups_.size());
  return groups_[group];
}

}  // namespace fsdp::python
