#include "dispatch/input_casts.h"

#include <ATen/autocast_mode.h>

#include "torch_seams/dispatch_key.h"

namespace fsdp {
namespace {

bool is_foreign(const at::Tensor& tensor, at::ScalarType dtype) {
  return tensor.defined() && tensor.is_floating_point() && tensor.scalar_type() != dtype &&
         !seams::has_sharded_key(tensor);
}

bool holds_foreign(const c10::IValue& value, at::ScalarType dtype) {
  if (value.isTensor()) {
    return is_foreign(value.toTensor(), dtype);
  }
  if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) {
      if (is_foreign(tensor, dtype)) {
        return true;
      }
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

}  // namespace

std::optional<at::ScalarType> cast_inputs(const OperatorInfo& info, at::ScalarType parameter,
                                          torch::jit::Stack& stack) {
  c10::IValue* arguments = stack.data() + stack.size() - info.num_arguments;
  std::optional<at::ScalarType> result;
  for (const OperatorInfo::Argument& argument : info.tensors) {
    c10::IValue& value = arguments[argument.position];
    if (argument.written || !holds_foreign(value, parameter)) {
      continue;
    }
    if (value.isTensor() && at::autocast::is_autocast_enabled(value.toTensor().device().type())) {
      return std::nullopt;  // which does it its own way
    }
    if (info.cast == CastRule::kNormalisation && argument.position == 0 &&
        is_wider(parameter, value.toTensor().scalar_type())) {
      result = value.toTensor().scalar_type();
    }
    cast(value, parameter);
  }
  return result;
}

void cast_results(torch::jit::Stack& stack, size_t count, at::ScalarType dtype) {
  for (size_t i = stack.size() - count; i < stack.size(); ++i) {
    if (holds_foreign(stack[i], dtype)) {
      cast(stack[i], dtype);
    }
  }
}

}  // namespace fsdp
