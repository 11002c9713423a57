// Sees tensors that are made like a leaf whose unit is to be cut ([Note: state made before units are cut]).
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include "dispatch/operator_info.h"
#include "engine/unit.h"

namespace fsdp {

// Around one operator. Costs nothing but for those that make tensors like another one.
class LeafLikeness {
 public:
  // The operator is about to be called with `stack`.
  LeafLikeness(const OperatorInfo& info, const torch::jit::Stack& stack);
  // It has been called.
  void note(const torch::jit::Stack& stack);

 private:
  Unit* unit_ = nullptr;  // of the leaf; null: there is nothing to note
  Likeness likeness_;
};

// What an operator of this name makes of its first argument.
MadeLike made_like(const std::string& name);

}  // namespace fsdp
