#include "dispatch/derived_tensors.h"

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <algorithm>

#include "base/visit_tensors.h"
#include "dispatch/input_casts.h"
#include "engine/unit.h"
#include "torch_seams/derived_key.h"
#include "torch_seams/dispatch_key.h"
#include "torch_seams/keyed_storage.h"

namespace fsdp::dispatch {
namespace {

// Whether the tensor is a parameter whose compute dtype differs from the dtype of its shard, in a unit that casts
// inputs.
bool is_low_parameter(const at::Tensor& tensor) {
  const seams::StorageOwner* owner = seams::has_sharded_key(tensor) ? seams::storage_owner(tensor) : nullptr;
  engine::Unit* unit =
      owner && owner->kind == seams::StorageOwner::Kind::kParameter ? engine::unit_of(*owner) : nullptr;
  if (!unit || !unit->options().cast_forward_inputs) return false;
  const flat::FlatDtypes& dtypes = unit->place(owner->index).flat.dtypes();
  return dtypes.compute != dtypes.shard && tensor.scalar_type() == dtypes.compute;
}

template <typename Visit>
void visit_arguments(const OperatorInfo& info, const torch::jit::Stack& stack, const Visit& visit) {
  const c10::IValue* arguments = stack.data() + stack.size() - info.num_arguments;
  for (const OperatorInfo::Argument& argument : info.tensors) base::visit_tensors(arguments[argument.position], visit);
}

std::optional<at::ScalarType> dtype_of_derived_argument(const OperatorInfo& info, const torch::jit::Stack& stack) {
  std::optional<at::ScalarType> dtype;
  visit_arguments(info, stack, [&](const at::Tensor& tensor) {
    if (!dtype && seams::has_derived_key(tensor)) dtype = tensor.scalar_type();
  });
  return dtype;
}

// Whether the operator calls other operators, which have casts of their own.
bool is_seen_through(const OperatorInfo& info) {
  return info.kind == OperatorKind::kCustom || info.kind == OperatorKind::kTransparent;
}

void redispatch_below(const c10::OperatorHandle& op, const OperatorInfo& info, c10::DispatchKeySet keys,
                      torch::jit::Stack* stack) {
  const auto below = keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, seams::kDerivedKey);
  if (is_seen_through(info)) {
    op.redispatchBoxed(below, stack);
    return;
  }
  c10::impl::ExcludeDispatchKeyGuard nested(seams::kDerivedKey);
  op.redispatchBoxed(below, stack);
}

void use_derived(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const OperatorInfo& info = operator_info(op);
  const std::optional<at::ScalarType> derived = derived_dtype(info, *stack);
  std::optional<InputCasts> casts;
  if (info.cast != CastRule::kNone) {
    if (auto dtype = dtype_of_derived_argument(info, *stack)) casts.emplace().apply(info, *dtype, *stack);
  }
  redispatch_below(op, info, keys, stack);
  const size_t results = op.schema().returns().size();
  if (casts) casts->finish(*stack, results);
  if (derived) mark_derived(*stack, results, *derived);
}

}  // namespace

std::optional<at::ScalarType> derived_dtype(const OperatorInfo& info, const torch::jit::Stack& stack) {
  const bool writes = std::any_of(info.tensors.begin(), info.tensors.end(),
                                  [](const OperatorInfo::Argument& argument) { return argument.written; });
  const bool takes_values = info.made_like == MadeLike::kNothing || info.made_like == MadeLike::kCopy;
  if (writes || !takes_values) return std::nullopt;
  std::optional<at::ScalarType> dtype;
  bool others = false;
  visit_arguments(info, stack, [&](const at::Tensor& tensor) {
    if (!tensor.defined()) return;
    if (seams::has_derived_key(tensor) || is_low_parameter(tensor)) {
      dtype = tensor.scalar_type();
    } else {
      others = others || (tensor.dim() > 0 && !seams::has_sharded_key(tensor));
    }
  });
  return others ? std::optional<at::ScalarType>() : dtype;
}

void mark_derived(const torch::jit::Stack& stack, size_t count, at::ScalarType dtype) {
  for (size_t i = stack.size() - count; i < stack.size(); ++i) {
    base::visit_tensors(stack[i], [&](const at::Tensor& tensor) {
      if (tensor.defined() && tensor.scalar_type() == dtype && !seams::has_sharded_key(tensor) &&
          !seams::has_derived_key(tensor)) {
        seams::add_derived_key(tensor);
      }
    });
  }
}

TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericWrapper, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&use_derived>());
}

}  // namespace fsdp::dispatch
