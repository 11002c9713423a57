#include "planner/device/result_shapes.h"

#include <ATen/EmptyTensor.h>
#include <c10/util/Exception.h>

#include <map>
#include <string>

#include "base/error_message.h"
#include "base/map_tensors.h"
#include "base/visit_tensors.h"
#include "planner/device/shape_table.h"
#include "torch_seams/clean_dispatch.h"

namespace fsdp::planner {
namespace {

using torch::jit::Stack;

bool has_masks(const c10::IValue& indices) {
  bool found = false;
  base::visit_tensors(indices, [&](const at::Tensor& index) {
    found |= index.defined() && (index.scalar_type() == at::kBool || index.scalar_type() == at::kByte);
  });
  return found;
}

bool depends_on_values(const c10::OperatorHandle& op, const Stack& arguments) {
  const std::string& name = op.schema().name();
  if (name == "aten::index") return has_masks(arguments.at(1));
  return op.hasTag(at::Tag::dynamic_output_shape) || op.hasTag(at::Tag::data_dependent_output);
}

// A tensor that is passed twice is one tensor on the meta device. Storages are not shared there: no shape depends on
// it.
Stack on_meta(const Stack& arguments) {
  std::map<const c10::TensorImpl*, at::Tensor> known;
  const auto stand_in = [&](const at::Tensor& tensor) {
    if (tensor.dim() == 0 && tensor.unsafeGetTensorImpl()->is_wrapped_number()) return tensor;
    at::Tensor& made = known[tensor.unsafeGetTensorImpl()];
    if (!made.defined()) {
      made = at::detail::empty_strided_meta(tensor.sizes(), tensor.strides(), tensor.scalar_type());
    }
    return made;
  };
  Stack meta;
  for (const c10::IValue& argument : arguments) {
    meta.push_back(argument.isDevice() ? c10::IValue(c10::Device(c10::kMeta)) : base::map_tensors(argument, stand_in));
  }
  return meta;
}

// Returns the operator that returns new tensors in place of filling those of the caller: "where.self_out" is like
// "where.self", and "abs.out" like "abs".
c10::OperatorName functional_name(const c10::OperatorName& name) {
  std::string overload = name.overload_name;
  for (const std::string end : {"_out", "out"}) {
    if (overload.size() < end.size() || overload.compare(overload.size() - end.size(), end.size(), end) != 0) continue;
    overload.resize(overload.size() - end.size());
    break;
  }
  return {name.name, overload};
}

// Puts the results of the operator without outputs in place of the outputs, and returns them.
Stack with_outputs(const c10::FunctionSchema& schema, ShapeFunction shapes, Stack& meta) {
  Stack inputs;
  for (size_t i = 0; i < meta.size(); ++i) {
    if (!schema.arguments()[i].is_out()) inputs.push_back(meta[i]);
  }
  Stack results = shapes(inputs);
  size_t next = 0;
  for (size_t i = 0; i < meta.size(); ++i) {
    if (schema.arguments()[i].is_out()) meta[i] = results.at(next++);
  }
  return results;
}

}  // namespace

Stack result_shapes(const c10::OperatorHandle& op, const Stack& arguments, Stack& meta) {
  const std::string name = c10::toString(op.operator_name());
  TORCH_CHECK(!depends_on_values(op, arguments), "fsdp plan: the sizes of the results of ", name,
              " depend on values, which a plan does not have");
  const seams::CleanDispatchGuard clean;
  meta = on_meta(arguments);
  if (const ShapeFunction shapes = find_shape_function(op.operator_name())) return shapes(meta);
  if (const ShapeFunction shapes = find_shape_function(functional_name(op.operator_name()))) {
    return with_outputs(op.schema(), shapes, meta);
  }
  Stack results = meta;
  try {
    op.callBoxed(results);
  } catch (const c10::NotImplementedError&) {
    TORCH_CHECK(false, "fsdp plan: no shape function for ", name, " (trainer/planner/device/shape_table.cpp)");
  }
  return results;
}

}  // namespace fsdp::planner
