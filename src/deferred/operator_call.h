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
  DeferredStorage* deferred;  // null for an ordinary tensor
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
  bool any_sharded() const;      // a tensor that belongs to the engine
  bool writes_ordinary() const;  // a tensor that is not deferred
  bool reads_ordinary() const;   // same, but scalars on the host do not count
  bool writes_deferred() const;
  // Returns the position of the argument with this name, or nullopt if the operator has none or it is None.
  std::optional<size_t> given(const char* name) const;
  // Returns the device of the results: the requested one, otherwise that of the first tensor, otherwise the CPU.
  // `aten::to.other` is special: its results go to the device of its last tensor.
  c10::Device device() const;
  std::vector<at::Tensor> recorded() const;

 private:
  const c10::OperatorHandle& op_;
  const c10::IValue* arguments_;
  size_t num_arguments_;
  std::vector<TensorArgument> tensors_;
};

// Whether the tensor is a scalar on the host, which operators combine with tensors of any device.
bool is_host_scalar(const at::Tensor& tensor);

}  // namespace fsdp::deferred
