// What an optimizer does not take, found out before anything is changed.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <map>
#include <string>

#include "fsdp/optimizer_state.h"

namespace fsdp {

// Why the optimizer does not take a state for a leaf, of which tensors' dtypes are given by name; empty: it does.
std::string refusal_of(const OptimizerState& optimizer, const at::Tensor& leaf,
                       const std::map<std::string, c10::ScalarType>& dtypes,
                       const std::map<std::string, double>& scalars);
std::string refusal_of(const OptimizerState& optimizer, size_t group, const std::map<std::string, double>& options);

// Dtypes of a state's tensors.
std::map<std::string, c10::ScalarType> dtypes_of(const LeafState& state);

}  // namespace fsdp
