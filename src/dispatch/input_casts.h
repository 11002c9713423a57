// Casts between the dtypes of activations and of the parameters that they meet: at operators, where PyTorch's FSDP does
// it in hooks on modules.
#pragma once

#include <ATen/core/stack.h>
#include <c10/util/SmallVector.h>

#include <optional>

#include "dispatch/operator_info.h"

namespace fsdp {

// The casts around one call of an operator whose units want inputs cast.
//
// [Note: running statistics]
// A normalisation's kernel writes to its running statistics, so that these are never cast in place of the argument.
// Where they are wider than the parameters (fp32 beside bf16, as buffers keep their dtype by default), the parameters
// are cast up for the call, as mixed kernels want it; where kernels do not mix these dtypes, the input is as well, and
// the result cast back. Where they are narrower, the kernel works on copies in the parameters' dtype, which are written
// back, rounded.
class InputCasts {
 public:
  // Casts the arguments on `stack` that the operator's rule names, as operators that autograd sees. `parameter`: the
  // dtype of the sharded parameters among the arguments.
  void apply(const OperatorInfo& info, at::ScalarType parameter, torch::jit::Stack& stack);
  // After the call: casts floating-point results, the topmost `count` values, and writes statistics back.
  void finish(torch::jit::Stack& stack, size_t count);

 private:
  struct Statistics {
    at::Tensor original, copy;
  };
  void use_statistics(const OperatorInfo& info, at::ScalarType& parameter, torch::jit::Stack& stack);

  std::optional<at::ScalarType> result_;  // the dtype of floating-point results, where they are to be cast
  std::optional<at::ScalarType> raised_;  // the dtype that sharded arguments are cast to, where they are
  c10::SmallVector<Statistics, 2> written_back_;
};

}  // namespace fsdp
