// What an operator on split parameters needs around its call, so that its result is that of the whole parameters.
//
// [Note: where parts meet activations]
// The operators below are rules, the only ones in which a split parameter may be used in forward. W is cut along its
// outputs (columns) or its inputs (rows); f and g are Megatron's functions.
//
// * x W^T + b, W cut along columns: each rank has some outputs, f(x) W_r^T + b_r, where f adds the gradient of x up
//   over the ranks.
// * x W^T + b, W cut along rows: each rank has some inputs, g(x_r W_r^T) + b, where g adds the products up.
// * An embedding, its table cut along rows: each rank looks up its own rows, others count as zero, g(rows).
// * y + b and y * b for a split vector b, whose channels y has: no communication.
//
// With sequence parallelism, f also gathers positions, and g gives each rank its own.
//
// In backward, operators on parts compute gradients of parts, and need nothing around them. A forward that is
// recomputed during backward is a forward.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/FunctionRef.h>

#include <memory>
#include <optional>
#include <string>

#include "flat/flat_parameter.h"
#include "tensor_parallel/exchange.h"

namespace fsdp::tensor_parallel {

// Returns the parameter that a tensor is, or is a view of; null for other tensors.
using FindParameter = c10::function_ref<const flat::ShardedParameter*(const at::Tensor&)>;

// One call of an operator. Its tensors are used as they are given, by operators that autograd sees.
class SplitCall {
 public:
  SplitCall(std::shared_ptr<Exchange> exchange, const c10::OperatorHandle& op)
      : exchange_(std::move(exchange)), op_(op) {}

  // Prepares the arguments on the stack. Throws if no rule lets the operator use its split parameters. Returns false,
  // and has done nothing, if none of its parameters is split.
  bool prepare(torch::jit::Stack& stack, FindParameter parameter_of);
  // The operator that takes the arguments: the given one, or one without the bias.
  const c10::OperatorHandle& op() const { return op_; }
  // Call with the results on the stack.
  void finish(torch::jit::Stack& stack);

 private:
  using PartPtr = std::shared_ptr<const flat::PartOfWhole>;
  // A weight that multiplies, and the dimension of the given tensor along which it is cut.
  struct Weight {
    const flat::ShardedParameter* parameter = nullptr;
    int64_t dim = 0;
  };
  // Indices of the arguments of a product, from the left; a bias of -1 is none.
  struct Product {
    int input, weight, bias;
    int64_t output_dim;
  };

  // `split`: a split parameter among the arguments, for errors.
  void prepare_product(torch::jit::Stack& stack, const Product& product, const flat::ShardedParameter& split,
                       FindParameter parameter_of);
  void prepare_columns(c10::IValue& input, const c10::IValue* bias, const Weight& weight, FindParameter parameter_of);
  void prepare_rows(torch::jit::Stack& stack, const Product& product, const Weight& weight);
  // With sequence parallelism: throws unless the input of a product has positions.
  void check_has_positions(const flat::ShardedParameter& parameter, const at::Tensor& input) const;
  void prepare_embedding(torch::jit::Stack& stack, const flat::ShardedParameter& split, FindParameter parameter_of);
  bool is_channelwise(const torch::jit::Stack& stack, FindParameter parameter_of) const;
  Weight weight_of(const at::Tensor& tensor, FindParameter parameter_of) const;
  [[noreturn]] void refuse(const flat::ShardedParameter& parameter, const std::string& why = "") const;

  std::shared_ptr<Exchange> exchange_;
  c10::OperatorHandle op_;
  std::string name_;                   // of the parameter
  bool sums_ = false;                  // finish() adds the result up,
  std::optional<at::Tensor> missing_;  // sets these rows to zero before that,
  at::Tensor bias_;                    // and adds this afterwards
  PartPtr gathered_;                   // or gathers it
};

}  // namespace fsdp::tensor_parallel
