// Finds out what an optimizer does not accept before anything is changed.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <map>
#include <string>

#include "fsdp/optimizer_state.h"

namespace fsdp::state {

// Returns why the optimizer does not accept a state for a leaf, or an empty string if it does. `dtypes`: the dtypes of
// the state's tensors, by name.
std::string refusal_of(const OptimizerState& optimizer, const at::Tensor& leaf,
                       const std::map<std::string, c10::ScalarType>& dtypes,
                       const std::map<std::string, double>& scalars);
std::string refusal_of(const OptimizerState& optimizer, size_t group, const std::map<std::string, double>& options);

// Returns the dtypes of a state's tensors, by name.
std::map<std::string, c10::ScalarType> dtypes_of(const LeafState& state);

}  // namespace fsdp::state
