#include "support/devices/operator_rehearsal.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <functional>
#include <map>

#include "base/map_tensors.h"
#include "base/visit_tensors.h"
#include "support/devices/simulated_memory.h"

namespace fsdp::testing {
namespace {

using MakeStandIn = std::function<at::Tensor(const at::Tensor&)>;

at::Tensor on_meta(const at::Tensor& tensor) {
  return at::detail::empty_strided_meta(tensor.sizes(), tensor.strides(), tensor.scalar_type());
}

at::Tensor zeros_on_cpu(const at::Tensor& tensor) {
  const auto nbytes = at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.itemsize());
  const at::Tensor bytes = at::zeros({static_cast<int64_t>(nbytes)}, at::kByte);
  return host_tensor(bytes.storage(), tensor, 0);
}

bool has_masks(const c10::IValue& indices) {
  bool found = false;
  base::visit_tensors(indices, [&](const at::Tensor& index) {
    found |= index.defined() && (index.scalar_type() == at::kBool || index.scalar_type() == at::kByte);
  });
  return found;
}

// Whether the sizes of the results depend on data. For indexing, they do so only if an index is a mask.
bool depends_on_data(const c10::OperatorHandle& op, const torch::jit::Stack& arguments) {
  const std::string& name = op.schema().name();
  if (name == "aten::index") return has_masks(arguments.at(1));
  return op.hasTag(at::Tag::dynamic_output_shape) || op.hasTag(at::Tag::data_dependent_output);
}

bool returns_tensors(const c10::FunctionSchema& schema) {
  return std::all_of(schema.returns().begin(), schema.returns().end(), [](const c10::Argument& result) {
    return result.type()->isSubtypeOf(*c10::TensorType::get()) ||
           result.type()->isSubtypeOf(*c10::ListType::ofTensors());
  });
}

std::optional<Rehearsal> rehearse_on(c10::Device device, const MakeStandIn& make, const c10::OperatorHandle& op,
                                     const torch::jit::Stack& arguments) {
  std::map<const c10::TensorImpl*, at::Tensor> made;
  auto stand_in = [&](const at::Tensor& tensor) {
    if (tensor.is_cpu()) return tensor;
    at::Tensor& known = made[tensor.unsafeGetTensorImpl()];
    if (!known.defined()) known = make(tensor);
    return known;
  };
  Rehearsal rehearsal;
  for (const c10::IValue& argument : arguments) {
    rehearsal.arguments.push_back(with_device(base::map_tensors(argument, stand_in), device));
  }
  rehearsal.results = rehearsal.arguments;
  try {
    op.callBoxed(rehearsal.results);
  } catch (const std::exception&) {
    return std::nullopt;
  }
  return rehearsal;
}

}  // namespace

c10::IValue with_device(const c10::IValue& value, c10::Device device) {
  return value.isDevice() ? c10::IValue(device) : value;
}

std::optional<Rehearsal> rehearse(const c10::OperatorHandle& op, const torch::jit::Stack& arguments) {
  if (depends_on_data(op, arguments) || !returns_tensors(op.schema()) || op.hasTag(at::Tag::nondeterministic_seeded)) {
    return std::nullopt;
  }
  if (op.hasKernelForDispatchKey(c10::DispatchKey::Meta)) {
    if (auto done = rehearse_on(c10::kMeta, on_meta, op, arguments)) return done;
  }
  return rehearse_on(c10::kCPU, zeros_on_cpu, op, arguments);
}

}  // namespace fsdp::testing
