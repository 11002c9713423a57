// Casts between the dtypes of activations and of the parameters that they meet. The casts are done at operators,
// whereas PyTorch's FSDP does them in hooks on modules.
#pragma once

#include <ATen/core/stack.h>
#include <c10/util/SmallVector.h>

#include <optional>

#include "dispatch/operator_info.h"

namespace fsdp::dispatch {

// The casts around one call of an operator on parameters of units that have cast_forward_inputs.
//
// [Note: running statistics]
// The kernel of a normalisation writes to its running statistics, so the argument itself is never replaced by a cast
// for good. If the statistics are wider than the parameters (fp32 with bf16, as buffers keep their dtype by default),
// the parameters are cast up for the call, because kernels that mix dtypes expect that; if kernels do not mix these
// dtypes, the input is cast up as well and the result is cast back. If the statistics are narrower, the kernel works on
// copies in the parameters' dtype, which are written back, rounded.
class InputCasts {
 public:
  // Casts the arguments on `stack` that the operator's rule names, using operators that autograd sees. `parameter` is
  // the dtype of the sharded parameters among the arguments.
  void apply(const OperatorInfo& info, at::ScalarType parameter, torch::jit::Stack& stack);
  // Call after the operator: casts floating-point results among the topmost `count` values, and writes statistics back.
  void finish(torch::jit::Stack& stack, size_t count);

 private:
  struct Statistics {
    at::Tensor original, copy;
  };
  void use_statistics(const OperatorInfo& info, at::ScalarType& parameter, torch::jit::Stack& stack);

  std::optional<at::ScalarType> result_;  // the dtype to which floating-point results are cast, if any
  std::optional<at::ScalarType> raised_;  // the dtype to which sharded arguments are cast, if any
  c10::SmallVector<Statistics, 2> written_back_;
};

}  // namespace fsdp::dispatch
