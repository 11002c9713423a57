// Notes tensors that are made like a leaf whose unit will be cut ([Note: state made before units are cut]).
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include "dispatch/operator_info.h"
#include "engine/unit.h"

namespace fsdp::dispatch {

// Surrounds the call of one operator. Costs nothing unless the operator makes a tensor like another one.
class LeafLikeness {
 public:
  // Call before the operator, with its arguments on `stack`.
  LeafLikeness(const OperatorInfo& info, const torch::jit::Stack& stack);
  // Call after the operator, with its results on `stack`.
  void note(const torch::jit::Stack& stack);

 private:
  engine::Unit* unit_ = nullptr;  // the unit of the leaf; null if there is nothing to note
  engine::Likeness likeness_;
};

// Returns the kind of tensor that an operator of this name makes like its first argument.
MadeLike made_like(const std::string& name);

}  // namespace fsdp::dispatch
