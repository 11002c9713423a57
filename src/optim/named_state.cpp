#include "optim/named_state.h"

#include <c10/util/Exception.h>

#include <utility>

namespace fsdp::optim {

NamedState::NamedState(std::string optimizer, const at::Tensor& leaf, const LeafState& state)
    : optimizer_(std::move(optimizer)), leaf_(leaf), state_(state) {}

at::Tensor NamedState::take_tensor(const std::string& name) {
  at::Tensor value = take_tensor_if_there(name);
  TORCH_CHECK(value.defined(), optimizer_, ": the state given for a leaf has no tensor '", name, "'");
  return value;
}

at::Tensor NamedState::take_tensor_if_there(const std::string& name) {
  const auto found = state_.tensors.find(name);
  if (found == state_.tensors.end()) return {};
  taken_.insert(name);
  TORCH_CHECK(found->second.sizes() == leaf_.sizes(), optimizer_, ": state '", name, "' has shape ",
              found->second.sizes(), ", its leaf ", leaf_.sizes());
  TORCH_CHECK(found->second.device() == leaf_.device(), optimizer_, ": state '", name, "' is on ",
              found->second.device(), ", its leaf on ", leaf_.device());
  // SGD's momentum buffer starts as a copy of a gradient, so it may have the gradient's dtype.
  TORCH_CHECK(found->second.scalar_type() == leaf_.scalar_type() || name == "momentum_buffer", optimizer_, ": state '",
              name, "' is ", found->second.scalar_type(), ", its leaf ", leaf_.scalar_type(),
              "; values are not cast implicitly");
  return found->second;
}

double NamedState::take_scalar(const std::string& name) {
  const auto found = state_.scalars.find(name);
  TORCH_CHECK(found != state_.scalars.end(), optimizer_, ": the state given for a leaf has no number '", name, "'");
  taken_.insert(name);
  return found->second;
}

void NamedState::check_all_taken() const {
  const auto check = [&](const auto& values) {
    for (const auto& [name, value] : values) {
      TORCH_CHECK(taken_.count(name) > 0, optimizer_, ": has no state '", name,
                  "': was it saved by another optimizer?");
    }
  };
  check(state_.tensors);
  check(state_.scalars);
}

NamedOptions::NamedOptions(std::string optimizer, const std::map<std::string, double>& options)
    : optimizer_(std::move(optimizer)), left_(options) {}

double NamedOptions::take(const std::string& name) {
  const auto found = left_.extract(name);
  TORCH_CHECK(!found.empty(), optimizer_, ": the options given for a parameter group have no '", name, "'");
  return found.mapped();
}

void NamedOptions::take_fixed(const std::string& name, double value) {
  const double given = take(name);
  TORCH_CHECK(given == value, optimizer_, ": option '", name, "' is always ", value, ", but ", given,
              " was given: was it saved by another optimizer?");
}

void NamedOptions::check_all_taken() const {
  TORCH_CHECK(left_.empty(), optimizer_, ": has no option '", left_.begin()->first,
              "': was it saved by another optimizer?");
}

}  // namespace fsdp::optim
