// Properties of an operator that recording needs.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

namespace fsdp::deferred {

struct OperatorTraits {
  bool draws = false;          // uses random numbers
  bool fills = false;          // overwrites its first argument without reading it
  bool only_shapes = false;    // reads no elements of its arguments: empty_like, new_zeros
  bool of_the_object = false;  // acts on the tensor object: requires_grad_
};

OperatorTraits traits_of(const c10::OperatorHandle& op);

}  // namespace fsdp::deferred
