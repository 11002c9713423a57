// Finds out the results that an operator on the simulated device will return, before it has run.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <optional>

namespace fsdp::testing {

// Arguments and results of a call on stand-ins, which are tensors of the same geometry on another device.
struct Rehearsal {
  torch::jit::Stack arguments;
  torch::jit::Stack results;
};

// Returns nullopt if the sizes of results depend on data, if the operator returns anything other than tensors, if it
// draws random numbers, or if it refuses the stand-ins.
std::optional<Rehearsal> rehearse(const c10::OperatorHandle& op, const torch::jit::Stack& arguments);

// Returns `value`, with `device` instead if it is a device. Device arguments of operators name the simulated device.
c10::IValue with_device(const c10::IValue& value, c10::Device device);

}  // namespace fsdp::testing
