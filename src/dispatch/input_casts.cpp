#include "dispatch/input_casts.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>

#include <utility>

#include "torch_seams/dispatch_key.h"

namespace fsdp::dispatch {
namespace {

bool is_foreign(const at::Tensor& tensor, at::ScalarType dtype) {
  return tensor.defined() && tensor.is_floating_point() && tensor.scalar_type() != dtype &&
         !seams::has_sharded_key(tensor);
}

bool holds_foreign(const c10::IValue& value, at::ScalarType dtype) {
  if (value.isTensor()) return is_foreign(value.toTensor(), dtype);
  if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) {
      if (is_foreign(tensor, dtype)) return true;
    }
  }
  return false;
}

void cast(c10::IValue& value, at::ScalarType dtype) {
  if (value.isTensor()) {
    value = value.toTensor().to(dtype);
    return;
  }
  c10::List<at::Tensor> list;
  for (const at::Tensor& tensor : value.toTensorVector()) {
    list.push_back(is_foreign(tensor, dtype) ? tensor.to(dtype) : tensor);
  }
  value = c10::IValue(list);
}

bool is_wider(at::ScalarType a, at::ScalarType b) { return c10::elementSize(a) > c10::elementSize(b); }

// Returns statistics on the stack, undefined if the operator has none.
at::Tensor statistics_of(const OperatorInfo& info, const torch::jit::Stack& stack) {
  const c10::IValue* arguments = stack.data() + stack.size() - info.num_arguments;
  for (const OperatorInfo::Argument& argument : info.tensors) {
    if (argument.statistics && arguments[argument.position].isTensor() &&
        arguments[argument.position].toTensor().defined()) {
      return arguments[argument.position].toTensor();
    }
  }
  return {};
}

bool is_narrow(at::ScalarType dtype) { return dtype == at::kBFloat16 || dtype == at::kHalf; }

// Whether kernels of normalisations accept inputs of one dtype together with parameters and statistics of the other.
bool kernels_mix(at::ScalarType input, at::ScalarType parameters) {
  return is_narrow(input) && parameters == at::kFloat;
}

}  // namespace

// Sets `parameter` to the dtype to which inputs must be cast.
void InputCasts::use_statistics(const OperatorInfo& info, at::ScalarType& parameter, torch::jit::Stack& stack) {
  const at::Tensor statistics = statistics_of(info, stack);
  if (!statistics.defined() || statistics.scalar_type() == parameter) return;
  if (is_wider(statistics.scalar_type(), parameter)) {
    raised_ = statistics.scalar_type();
    if (!kernels_mix(parameter, *raised_)) result_ = std::exchange(parameter, *raised_);
    return;
  }
  c10::IValue* arguments = stack.data() + stack.size() - info.num_arguments;
  for (const OperatorInfo::Argument& argument : info.tensors) {
    c10::IValue& value = arguments[argument.position];
    if (argument.statistics && value.isTensor() && value.toTensor().defined()) {
      written_back_.push_back({value.toTensor(), value.toTensor().to(parameter)});
      value = written_back_.back().copy;
    }
  }
}

void InputCasts::apply(const OperatorInfo& info, at::ScalarType parameter, torch::jit::Stack& stack) {
  c10::IValue* arguments = stack.data() + stack.size() - info.num_arguments;
  const c10::IValue& input = arguments[0];
  if (input.isTensor() && at::autocast::is_autocast_enabled(input.toTensor().device().type())) {
    return;  // autocast does its own casts
  }
  if (info.cast == CastRule::kNormalisation) {
    if (is_foreign(input.toTensor(), parameter) && is_wider(parameter, input.toTensor().scalar_type())) {
      result_ = input.toTensor().scalar_type();
    }
    use_statistics(info, parameter, stack);
  }
  for (const OperatorInfo::Argument& argument : info.tensors) {
    c10::IValue& value = arguments[argument.position];
    const at::ScalarType dtype = raised_ && argument.position > 0 ? *raised_ : parameter;
    const bool to_be_raised = raised_ && value.isTensor() && seams::has_sharded_key(value.toTensor());
    if (!argument.written && !argument.statistics && (to_be_raised || holds_foreign(value, dtype))) cast(value, dtype);
  }
}

void InputCasts::finish(torch::jit::Stack& stack, size_t count) {
  for (const Statistics& statistics : written_back_) {
    at::NoGradGuard no_grad;
    if (!statistics.original.to(statistics.copy.scalar_type()).equal(statistics.copy)) {
      statistics.original.copy_(statistics.copy);
    }
  }
  for (size_t i = stack.size() - count; result_ && i < stack.size(); ++i) {
    if (holds_foreign(stack[i], *result_)) cast(stack[i], *result_);
  }
}

}  // namespace fsdp::dispatch
