#include "tensor_parallel/split_call.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_assert_async.h>
#include <c10/util/StringUtil.h>

#include "fsdp/activation_checkpoint.h"
#include "torch_seams/gradient_hooks.h"

namespace fsdp::tensor_parallel {
namespace {

bool in_forward() { return !seams::in_backward() || is_recomputing(); }

// Returns the arguments of the operator, from the left.
c10::IValue* arguments_of(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  return stack.data() + stack.size() - op.schema().arguments().size();
}

const flat::ShardedParameter* parameter_in(const c10::IValue& value, FindParameter parameter_of) {
  return value.isTensor() ? parameter_of(value.toTensor()) : nullptr;
}

// Returns a split parameter among the arguments, or null.
const flat::ShardedParameter* find_split(const c10::OperatorHandle& op, torch::jit::Stack& stack,
                                         FindParameter parameter_of) {
  const flat::ShardedParameter* found = nullptr;
  const c10::IValue* arguments = arguments_of(op, stack);
  const auto look = [&](const at::Tensor& tensor) {
    const flat::ShardedParameter* parameter = parameter_of(tensor);
    if (!found && parameter && parameter->part) found = parameter;
  };
  for (size_t i = 0; i < op.schema().arguments().size(); ++i) {
    if (arguments[i].isTensor()) look(arguments[i].toTensor());
    if (!arguments[i].isTensorList()) continue;
    for (const at::Tensor& tensor : arguments[i].toTensorVector()) look(tensor);
  }
  return found;
}

bool writes(const c10::OperatorHandle& op, size_t argument) {
  const c10::AliasInfo* alias = op.schema().arguments()[argument].alias_info();
  return alias && alias->isWrite();
}

// Whether `tensor` has all elements of the parameter, with the dimensions in the given order.
bool is_permuted(const at::Tensor& tensor, const flat::ShardedParameter& parameter,
                 std::initializer_list<size_t> order) {
  if (tensor.dim() != static_cast<int64_t>(order.size()) || order.size() != parameter.sizes.size()) return false;
  int64_t i = 0;
  for (const size_t dim : order) {
    if (tensor.size(i) != parameter.sizes[dim] || tensor.stride(i) != parameter.strides[dim]) return false;
    ++i;
  }
  return true;
}

}  // namespace

void SplitCall::refuse(const flat::ShardedParameter& parameter, const std::string& why) const {
  TORCH_CHECK(
      false, "fsdp: ", op_.schema().name(), " cannot use parameter '", parameter.fqn, "', which is ",
      parameter.part->describe(), " (tensor parallelism)", why.empty() ? "" : ": " + why,
      ". Split parameters are used in forward by linear, matmul, mm and addmm as a whole weight of two dimensions "
      "or its transpose, by embedding (split along dimension 0), and by add and mul as a vector of channels");
}

bool SplitCall::prepare(torch::jit::Stack& stack, FindParameter parameter_of) {
  const flat::ShardedParameter* split = find_split(op_, stack, parameter_of);
  if (!split) return false;
  for (size_t i = 0; i < op_.schema().arguments().size(); ++i) {
    const flat::ShardedParameter* written =
        writes(op_, i) ? parameter_in(arguments_of(op_, stack)[i], parameter_of) : nullptr;
    if (written && written->part) refuse(*written, "it writes to it");
  }
  if (!in_forward()) {
    TORCH_CHECK(!at::GradMode::is_enabled(), "fsdp: double backward (create_graph) through parameter '", split->fqn,
                "' is not supported: it is ", split->part->describe(), " (tensor parallelism)");
    return false;
  }
  name_ = split->fqn;
  const std::string& name = op_.schema().name();
  const std::string& overload = op_.schema().overload_name();
  if (name == "aten::linear") {
    prepare_product(stack, {0, 1, 2, 0}, *split, parameter_of);
  } else if ((name == "aten::matmul" || name == "aten::mm") && overload.empty()) {
    prepare_product(stack, {0, 1, -1, 1}, *split, parameter_of);
  } else if (name == "aten::addmm" && overload.empty()) {
    prepare_product(stack, {1, 2, 0, 1}, *split, parameter_of);
  } else if (name == "aten::embedding") {
    prepare_embedding(stack, *split, parameter_of);
  } else if (!is_channelwise(stack, parameter_of)) {
    refuse(*split);
  }
  return true;
}

// ---------------------------------------------------------------- products

SplitCall::Weight SplitCall::weight_of(const at::Tensor& tensor, FindParameter parameter_of) const {
  const flat::ShardedParameter* parameter = parameter_of(tensor);
  if (!parameter || !parameter->part) return {};
  // A matrix of one row or column may look like its transpose; then only the parameter itself is known.
  const bool same = parameter->tensor.is_same(tensor) || is_permuted(tensor, *parameter, {0, 1});
  const bool transposed = !parameter->tensor.is_same(tensor) && is_permuted(tensor, *parameter, {1, 0});
  if (same == transposed) refuse(*parameter, "not the whole weight or its transpose");
  return {parameter, transposed ? 1 - parameter->part->dim : parameter->part->dim};
}

void SplitCall::prepare_product(torch::jit::Stack& stack, const Product& product, const flat::ShardedParameter& split,
                                FindParameter parameter_of) {
  c10::IValue* arguments = arguments_of(op_, stack);
  const Weight weight = weight_of(arguments[product.weight].toTensor(), parameter_of);
  if (!weight.parameter) refuse(split, "its other arguments are whole");
  if (parameter_in(arguments[product.input], parameter_of)) refuse(split, "its input is a parameter");
  name_ = weight.parameter->fqn;
  if (weight.dim == product.output_dim) {
    prepare_columns(arguments[product.input], product.bias < 0 ? nullptr : &arguments[product.bias], weight,
                    parameter_of);
  } else {
    prepare_rows(stack, product, weight);
  }
}

void SplitCall::prepare_columns(c10::IValue& input, const c10::IValue* bias, const Weight& weight,
                                FindParameter parameter_of) {
  if (bias && bias->isTensor() && bias->toTensor().defined()) {
    const flat::ShardedParameter* parameter = parameter_of(bias->toTensor());
    if (!parameter || !parameter->part) refuse(*weight.parameter, "its bias is not split");
  }
  check_has_positions(*weight.parameter, input.toTensor());
  input = exchange_->enter(input.toTensor(), name_);
  if (weight.parameter->part->gathers_outputs) gathered_ = weight.parameter->part;
}

// Positions come before channels.
void SplitCall::check_has_positions(const flat::ShardedParameter& parameter, const at::Tensor& input) const {
  const auto dim = exchange_->sequence_dim();
  if (dim && input.dim() < *dim + 2) {
    refuse(parameter, c10::str("its input is of sizes ", input.sizes(), ", but dimension ", *dim,
                               " must be that of positions (sequence_dim), and channels come after it"));
  }
}

// A bias is added to the sum, once. addmm without a bias is mm.
void SplitCall::prepare_rows(torch::jit::Stack& stack, const Product& product, const Weight& weight) {
  c10::IValue* arguments = arguments_of(op_, stack);
  const bool takes = weight.parameter->part->takes_part_of_inputs;
  const at::Tensor given = arguments[product.input].toTensor();
  const int64_t wanted = takes ? weight.parameter->part->whole_sizes[static_cast<size_t>(weight.parameter->part->dim)]
                               : weight.parameter->part->size();
  if (given.dim() == 0 || given.size(-1) != wanted) {
    refuse(*weight.parameter, c10::str("its input is of sizes ", given.sizes(), ", but the last must be ", wanted,
                                       takes ? ", of all ranks" : ", this rank's part"));
  }
  if (takes) {
    arguments[product.input] = exchange_->take(arguments[product.input].toTensor(), weight.parameter->part, name_);
  }
  check_has_positions(*weight.parameter, given);
  exchange_->check_sequence(given);
  sums_ = true;
  if (product.bias < 0) return;
  bias_ = arguments[product.bias].isTensor() ? arguments[product.bias].toTensor() : at::Tensor();
  if (op_.schema().name() != "aten::addmm") {
    arguments[product.bias] = c10::IValue();
    return;
  }
  if (!arguments[3].toScalar().equal(1) || !arguments[4].toScalar().equal(1)) {
    refuse(*weight.parameter, "beta and alpha are not 1");
  }
  const at::Tensor input = arguments[1].toTensor(), matrix = arguments[2].toTensor();
  torch::jit::drop(stack, op_.schema().arguments().size());
  torch::jit::push(stack, input, matrix);
  static const c10::OperatorHandle mm = c10::Dispatcher::singleton().findSchemaOrThrow("aten::mm", "");
  op_ = mm;
}

// ---------------------------------------------------------------- other operators

// embedding(weight, indices, padding_idx, scale_grad_by_freq, sparse)
void SplitCall::prepare_embedding(torch::jit::Stack& stack, const flat::ShardedParameter& split,
                                  FindParameter parameter_of) {
  c10::IValue* arguments = arguments_of(op_, stack);
  const flat::ShardedParameter* parameter = parameter_in(arguments[0], parameter_of);
  if (!parameter || !parameter->part) refuse(split);
  const flat::PartOfWhole& part = *parameter->part;
  if (part.dim != 0 || part.ranges().size() != 1) refuse(*parameter, "not split along the vocabulary");
  if (arguments[3].toBool()) refuse(*parameter, "scale_grad_by_freq");
  if (arguments[4].toBool()) refuse(*parameter, "sparse gradients");
  const flat::IndexRange rows = part.ranges().front();
  const at::Tensor ids = arguments[1].toTensor();
  const int64_t vocabulary = part.whole_sizes.front();
  const at::Tensor known = ids.ge(0).logical_and(ids.lt(vocabulary)).all();
  if (ids.is_cpu()) {
    TORCH_CHECK_INDEX(known.item<bool>(), "fsdp: embedding: an index is not among the ", vocabulary,
                      " rows of parameter '", parameter->fqn, "'");
  } else {
    at::_assert_async(known);
  }
  const at::Tensor elsewhere = ids.lt(rows.begin).logical_or(ids.ge(rows.end));
  const int64_t padding = arguments[2].toInt();
  const bool has_padding = padding >= rows.begin && padding < rows.end;
  exchange_->check_sequence(ids);
  arguments[1] = ids.sub(rows.begin).masked_fill(elsewhere, 0);
  arguments[2] = has_padding ? padding - rows.begin : -1;
  missing_ = elsewhere.unsqueeze(-1);
  sums_ = true;
}

// Whether it adds or multiplies channels by a split vector.
bool SplitCall::is_channelwise(const torch::jit::Stack& stack, FindParameter parameter_of) const {
  const std::string& name = op_.schema().name();
  if (name != "aten::add" && name != "aten::add_" && name != "aten::mul" && name != "aten::mul_") return false;
  const c10::IValue* arguments = stack.data() + stack.size() - op_.schema().arguments().size();
  if (!arguments[0].isTensor() || !arguments[1].isTensor()) return false;
  const auto has_channels = [&](const c10::IValue& vector, const c10::IValue& other) {
    const flat::ShardedParameter* parameter = parameter_in(vector, parameter_of);
    const at::Tensor& values = other.toTensor();
    const flat::ShardedParameter* second = parameter_of(values);
    return parameter && parameter->part && vector.toTensor().dim() == 1 && values.dim() >= 1 &&
           values.size(-1) == parameter->part->size() && (!second || second->part);
  };
  return has_channels(arguments[1], arguments[0]) || has_channels(arguments[0], arguments[1]);
}

void SplitCall::finish(torch::jit::Stack& stack) {
  if (gathered_) stack.back() = exchange_->gather(stack.back().toTensor(), gathered_, name_);
  if (!sums_) return;
  at::Tensor result = stack.back().toTensor();
  if (missing_) result = result.masked_fill(*missing_, 0);
  result = exchange_->sum(result, name_);
  stack.back() = bias_.defined() ? result.add(bias_) : result;
}

}  // namespace fsdp::tensor_parallel
