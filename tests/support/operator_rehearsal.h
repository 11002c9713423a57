// What an operator on the simulated device will return, before it has run.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <optional>

namespace fsdp::testing {

// Arguments and results of a call on stand-ins: tensors of the same geometry elsewhere.
struct Rehearsal {
  torch::jit::Stack arguments;
  torch::jit::Stack results;
};

// Empty when sizes depend on data, when something else than tensors is returned, when random numbers are drawn, or when
// the operator refuses the stand-ins.
std::optional<Rehearsal> rehearse(const c10::OperatorHandle& op, const torch::jit::Stack& arguments);

// Device arguments name the simulated device: with another in their place.
c10::IValue with_device(const c10::IValue& value, c10::Device device);

}  // namespace fsdp::testing
