#include "state/refusal.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <functional>

namespace fsdp::state {

namespace {

std::string message_of(const std::function<void()>& check) {
  try {
    check();
  } catch (const c10::Error& error) {
    return std::string("not for this optimizer: ") + error.what_without_backtrace();
  }
  return "";
}

}  // namespace

std::string refusal_of(const OptimizerState& optimizer, const at::Tensor& leaf,
                       const std::map<std::string, c10::ScalarType>& dtypes,
                       const std::map<std::string, double>& scalars) {
  LeafState state{{}, scalars};
  for (const auto& [name, dtype] : dtypes) {
    state.tensors[name] = at::empty({}, leaf.options().dtype(dtype).requires_grad(false)).expand(leaf.sizes());
  }
  return message_of([&] { optimizer.check_leaf(leaf, state); });
}

std::string refusal_of(const OptimizerState& optimizer, size_t group, const std::map<std::string, double>& options) {
  return message_of([&] { optimizer.check_options(group, options); });
}

std::map<std::string, c10::ScalarType> dtypes_of(const LeafState& state) {
  std::map<std::string, c10::ScalarType> dtypes;
  for (const auto& [name, tensor] : state.tensors) dtypes[name] = tensor.scalar_type();
  return dtypes;
}

}  // namespace fsdp::state
