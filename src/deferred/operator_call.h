// One call of an operator on the stack: its arguments by kind.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <optional>
#include <vector>

#include "deferred/deferred_storage.h"

namespace fsdp::deferred {

struct TensorArgument {
  at::Tensor tensor;
  DeferredStorage* deferred;  // null: an ordinary tensor
  bool written;
};

class OperatorCall {
 public:
  OperatorCall(const c10::OperatorHandle& op, const torch::jit::Stack& stack);

  const std::vector<TensorArgument>& tensors() const { return tensors_; }
  const c10::IValue& argument(size_t position) const { return *(arguments_ + position); }
  size_t num_arguments() const { return num_arguments_; }

  bool any_deferred() const;
  bool any_recorded() const;
  bool any_sharded() const;      // a tensor of the engine's
  bool writes_ordinary() const;  // a tensor that is not deferred
  bool reads_ordinary() const;   // likewise, but for scalars on the host
  bool writes_deferred() const;
  // The position of the argument of this name, if the operator has one and it is not None.
  std::optional<size_t> given(const char* name) const;
  // Where results are to be: what is asked for, else where the first tensor is, else the CPU.
  c10::Device device() const;
  std::vector<at::Tensor> recorded() const;

 private:
  const c10::OperatorHandle& op_;
  const c10::IValue* arguments_;
  size_t num_arguments_;
  std::vector<TensorArgument> tensors_;
};

// Whether it is a scalar on the host, which operators mix with tensors of any device.
bool is_host_scalar(const at::Tensor& tensor);

}  // namespace fsdp::deferred
