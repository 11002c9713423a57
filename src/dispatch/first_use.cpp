// First use: the only fallback on the sharded key. It sees every operator that has a keyed tensor among its arguments,
// gathers the units of these tensors, keeps them gathered while the operator runs, and redispatches below the key.
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <optional>

#include "base/visit_tensors.h"
#include "deferred/deferred_storage.h"
#include "deferred/recorder.h"
#include "dispatch/derived_tensors.h"
#include "dispatch/input_casts.h"
#include "dispatch/leaf_likeness.h"
#include "dispatch/operator_info.h"
#include "dispatch/parameter_writes.h"
#include "engine/engine.h"
#include "tensor_parallel/split_call.h"
#include "torch_seams/dispatch_key.h"
#include "torch_seams/keyed_storage.h"

namespace fsdp::dispatch {
namespace {

using seams::StorageOwner;

engine::Unit& live_unit_of(const StorageOwner& owner) {
  engine::Unit* unit = engine::unit_of(owner);
  TORCH_CHECK(unit, "fsdp: a sharded parameter was used after its sharded module was destroyed");
  return *unit;
}

// Units that stay gathered while one operator runs (rule R3).
class PinnedUnits {
 public:
  PinnedUnits() = default;
  PinnedUnits(const PinnedUnits&) = delete;
  ~PinnedUnits() {
    for (engine::Unit* unit : units_) unit->engine().gatherer().unpin(*unit);
  }
  // `parameter` is the index of the parameter in the unit.
  void add(engine::Unit& unit, int64_t parameter) {
    for (engine::Unit* pinned : units_) {
      if (pinned == &unit) return;
    }
    unit.engine().enter(unit, parameter);
    units_.push_back(&unit);
  }
  // Call if an operator on the units has failed: explains out-of-memory errors.
  void explain(c10::Error& error, const c10::OperatorHandle& op) const {
    if (!units_.empty()) {
      const engine::Unit& unit = *units_.front();
      unit.engine().memory().explain(error, c10::str(op.schema().name(), " on parameters of unit '", unit.name(), "'"));
    }
  }
  // Call after the operator has succeeded. Releasing units may throw.
  void leave() {
    while (!units_.empty()) {
      engine::Unit* unit = units_.back();
      units_.pop_back();
      unit->engine().gatherer().unpin(*unit);
    }
  }

 private:
  c10::SmallVector<engine::Unit*, 4> units_;
};

// Returns the owner of a shard that carries the sharded key, or null for other tensors.
const StorageOwner* owner_of_shard(const at::Tensor& tensor) {
  const StorageOwner* owner = seams::has_sharded_key(tensor) ? seams::storage_owner(tensor) : nullptr;
  return owner && owner->kind == StorageOwner::Kind::kShard ? owner : nullptr;
}

// Whether the tensor has the key and is neither a deferred tensor nor a shard.
bool is_sharded(const at::Tensor& tensor) {
  return seams::has_sharded_key(tensor) && (deferred::live_storages() == 0 || !deferred::find(tensor)) &&
         !owner_of_shard(tensor);
}

template <typename Visit>
void visit_sharded_arguments(const OperatorInfo& info, const torch::jit::Stack& stack, const Visit& visit) {
  const c10::IValue* arguments = stack.data() + stack.size() - info.num_arguments;
  for (const OperatorInfo::Argument& argument : info.tensors) {
    base::visit_tensors(arguments[argument.position], [&](const at::Tensor& tensor) {
      if (is_sharded(tensor)) visit(tensor, argument);
    });
  }
}

void prepare_writes_to_shards(const OperatorInfo& info, const torch::jit::Stack& stack) {
  const c10::IValue* arguments = stack.data() + stack.size() - info.num_arguments;
  for (const OperatorInfo::Argument& argument : info.tensors) {
    if (!argument.written) continue;
    base::visit_tensors(arguments[argument.position], [](const at::Tensor& tensor) {
      const StorageOwner* owner = owner_of_shard(tensor);
      if (engine::Unit* unit = owner ? engine::unit_of(*owner) : nullptr)
        unit->engine().gatherer().prepare_write_to_shards(*unit);
    });
  }
}

[[noreturn]] void refuse_sentinel(const StorageOwner& owner, const c10::OperatorHandle& op) {
  engine::Unit& unit = live_unit_of(owner);
  TORCH_CHECK(false, "fsdp: ", unit.where(), ": the gradient of parameter '", unit.parameter(owner.index).fqn,
              "' was used on the module by ", op.schema().name(),
              ". It lives in the shards: build optimizers on ShardedModule::parameters() and clip with "
              "ShardedModule::clip_grad_norm_");
}

const StorageOwner& owner_of(const at::Tensor& tensor, const c10::OperatorHandle& op) {
  const StorageOwner* owner = seams::storage_owner(tensor);
  TORCH_CHECK(owner, "fsdp: a tensor of shape ", tensor.sizes(),
              " carries the key of sharded parameters but not their storage (argument of ", op.schema().name(),
              "): its data was replaced after fully_shard. Convert and load before fully_shard");
  return *owner;
}

void refuse_sentinels(const c10::OperatorHandle& op, const OperatorInfo& info, const torch::jit::Stack& stack) {
  visit_sharded_arguments(info, stack, [&](const at::Tensor& tensor, const OperatorInfo::Argument&) {
    const StorageOwner& owner = owner_of(tensor, op);
    if (owner.kind == StorageOwner::Kind::kGradientSentinel) refuse_sentinel(owner, op);
  });
}

void pin_arguments(const c10::OperatorHandle& op, const OperatorInfo& info, const torch::jit::Stack& stack,
                   PinnedUnits& pinned) {
  visit_sharded_arguments(info, stack, [&](const at::Tensor& tensor, const OperatorInfo::Argument&) {
    const StorageOwner& owner = owner_of(tensor, op);
    if (owner.kind == StorageOwner::Kind::kGradientSentinel) refuse_sentinel(owner, op);
    if (live_unit_of(owner).pending_cut()) live_unit_of(owner).engine().cut_before_backward(live_unit_of(owner));
    pinned.add(live_unit_of(owner), owner.index);
  });
}

void enter_view(const OperatorInfo& info, const torch::jit::Stack& stack) {
  visit_sharded_arguments(info, stack, [](const at::Tensor& tensor, const OperatorInfo::Argument&) {
    const StorageOwner* owner = seams::storage_owner(tensor);
    if (owner && owner->kind == StorageOwner::Kind::kParameter && owner->unit.load()) {
      engine::Unit& unit = live_unit_of(*owner);
      unit.engine().gatherer().note_view(unit);
    }
  });
}

// Whether the raw memory of a parameter may be read and written now, inside pin() or with_full_params().
bool is_pinned(const at::Tensor& tensor) {
  const StorageOwner* owner = seams::has_sharded_key(tensor) ? seams::storage_owner(tensor) : nullptr;
  if (!owner || owner->kind != StorageOwner::Kind::kParameter) return false;
  return live_unit_of(*owner).is_pinned();
}

bool is_sentinel(const at::Tensor& tensor) {
  const StorageOwner* owner = seams::has_sharded_key(tensor) ? seams::storage_owner(tensor) : nullptr;
  return owner && owner->kind == StorageOwner::Kind::kGradientSentinel;
}

void zero_gradient_of(const at::Tensor& sentinel, const c10::OperatorHandle& op) {
  const StorageOwner& owner = *seams::storage_owner(sentinel);
  engine::Unit::Place place = live_unit_of(owner).place(owner.index);
  if (sentinel.numel() != place.flat.layout().numel(place.parameter)) {
    refuse_sentinel(owner, op);  // a part of it: the caller works on gradients
  }
  place.gradient->zero_leaf(place.parameter);
}

// Handles zero_(sentinel) and _foreach_zero_({…, sentinel, …}): zeroes the shards' gradients and removes the sentinels
// from the call. Returns whether nothing is left to do.
bool zero_sentinels(torch::jit::Stack& stack, const c10::OperatorHandle& op) {
  c10::IValue& argument = stack.back();
  if (argument.isTensor()) {
    if (!is_sentinel(argument.toTensor())) return false;
    zero_gradient_of(argument.toTensor(), op);
    return true;  // zero_ returns its argument, which is on the stack
  }
  c10::List<at::Tensor> others;
  for (const at::Tensor& tensor : argument.toTensorVector()) {
    if (is_sentinel(tensor)) {
      zero_gradient_of(tensor, op);
    } else {
      others.push_back(tensor);
    }
  }
  if (others.empty()) {
    stack.pop_back();  // _foreach_zero_ returns nothing
    return true;
  }
  argument = c10::IValue(others);
  return false;
}

void redispatch(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack, bool exclude) {
  auto below = keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, seams::kShardedKey);
  if (exclude) {
    c10::impl::ExcludeDispatchKeyGuard nested(seams::kShardedKey);
    op.redispatchBoxed(below, stack);
  } else {
    op.redispatchBoxed(below, stack);
  }
}

// Returns the dtype to which inputs must be cast, if the unit of a sharded argument has cast_forward_inputs.
std::optional<at::ScalarType> wanted_dtype(const OperatorInfo& info, const torch::jit::Stack& stack) {
  std::optional<at::ScalarType> dtype;
  visit_sharded_arguments(info, stack, [&](const at::Tensor& tensor, const OperatorInfo::Argument&) {
    const StorageOwner* owner = seams::storage_owner(tensor);
    if (!dtype && tensor.is_floating_point() && owner && owner->unit.load() &&
        live_unit_of(*owner).options().cast_forward_inputs) {
      dtype = tensor.scalar_type();
    }
  });
  return dtype;
}

// Returns the parameter that `tensor` is, or is a view of; null for other tensors.
const flat::ShardedParameter* parameter_of(const at::Tensor& tensor) {
  const StorageOwner* owner = is_sharded(tensor) ? seams::storage_owner(tensor) : nullptr;
  if (!owner || owner->kind != StorageOwner::Kind::kParameter || !owner->unit.load()) return nullptr;
  return &live_unit_of(*owner).parameter(owner->index);
}

// Returns the parameter that `tensor` is itself, or null. A view of a parameter does not count.
const flat::ShardedParameter* parameter_that_is(const at::Tensor& tensor) {
  const flat::ShardedParameter* parameter = parameter_of(tensor);
  return parameter && parameter->tensor.is_same(tensor) ? parameter : nullptr;
}

// Refuses data that is not the engine's: inference would use it silently.
void check_set_data(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const at::Tensor tensor = stack->end()[-2].toTensor(), data = stack->end()[-1].toTensor();
  redispatch(op, keys, stack, /*exclude=*/true);
  const flat::ShardedParameter* parameter = stack->back().toBool() ? parameter_that_is(tensor) : nullptr;
  TORCH_CHECK(!parameter || seams::storage_owner(data) == parameter->owner.get(),
              "fsdp: ", live_unit_of(*parameter->owner).where(), ": parameter '", parameter->fqn,
              "' would leave the engine: its data cannot be replaced after fully_shard (assignment to .data, a "
              "conversion of the module with to(), double() or half(), or a state dict loaded by assignment). Convert "
              "and load before fully_shard, or write inside ShardedModule::with_full_params");
}

// Returns the exchange of the tree that the operator's parameters belong to; null without tensor parallelism.
std::shared_ptr<tensor_parallel::Exchange> exchange_of(const OperatorInfo& info, const torch::jit::Stack& stack) {
  std::shared_ptr<tensor_parallel::Exchange> exchange;
  if (tensor_parallel::Exchange::live() == 0) return exchange;
  visit_sharded_arguments(info, stack, [&](const at::Tensor& tensor, const OperatorInfo::Argument&) {
    const StorageOwner* owner = seams::storage_owner(tensor);
    if (!exchange && owner && owner->unit.load()) exchange = live_unit_of(*owner).engine().options().exchange;
  });
  return exchange;
}

void gathered_call(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

// Does what operators on split parameters need before and after the call.
void first_use_of_parts(std::shared_ptr<tensor_parallel::Exchange> exchange, const c10::OperatorHandle& op,
                        c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  tensor_parallel::SplitCall split(std::move(exchange), op);
  const bool is_split = split.prepare(*stack, parameter_of);
  gathered_call(split.op(), keys, stack);
  if (is_split) split.finish(*stack);
}

void first_use(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  if ((deferred::live_storages() > 0 || deferred::is_recording()) && deferred::intercept(op, *stack)) return;
  const OperatorInfo& info = operator_info(op);
  if (info.kind == OperatorKind::kCopy && is_sharded(stack->back().toTensor())) {
    if (!is_pinned(stack->back().toTensor())) {  // if pinned, the argument itself is the result
      stack->back() = stack->back().toTensor().clone();
    }
    return;
  }
  if (info.kind == OperatorKind::kSetData) {
    check_set_data(op, keys, stack);
    return;
  }
  if (info.kind == OperatorKind::kView) enter_view(info, *stack);
  if (info.kind == OperatorKind::kView || info.kind == OperatorKind::kTransparent) {
    redispatch(op, keys, stack, /*exclude=*/info.kind == OperatorKind::kView);
    return;
  }
  if (info.kind == OperatorKind::kZero && zero_sentinels(*stack, op)) return;
  if (auto exchange = exchange_of(info, *stack)) {
    first_use_of_parts(std::move(exchange), op, keys, stack);
  } else {
    gathered_call(op, keys, stack);
  }
}

// Calls an operator on parameters that are gathered for it.
void gathered_call(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const OperatorInfo& info = operator_info(op);
  std::optional<ParameterWrites> writes;
  if (ParameterWrites::any(info, *stack)) {
    refuse_sentinels(op, info, *stack);
    writes.emplace(op, info, *stack);
  }
  const std::optional<at::ScalarType> derived = derived_dtype(info, *stack);
  std::optional<InputCasts> casts;
  if (!writes && info.cast != CastRule::kNone) {
    if (auto dtype = wanted_dtype(info, *stack)) casts.emplace().apply(info, *dtype, *stack);
  }
  {
    prepare_writes_to_shards(info, *stack);
    PinnedUnits pinned;
    pin_arguments(op, info, *stack, pinned);
    LeafLikeness likeness(info, *stack);
    try {
      redispatch(op, keys, stack, /*exclude=*/info.kind != OperatorKind::kCustom);
      likeness.note(*stack);
    } catch (c10::Error& error) {
      pinned.explain(error, op);
      throw;
    }
    pinned.leave();
  }
  if (writes) writes->finish(*stack);
  const size_t results = op.schema().returns().size();
  if (casts) casts->finish(*stack, results);
  if (derived) mark_derived(*stack, results, *derived);
}

}  // namespace

TORCH_LIBRARY_IMPL(_, DeferredInit, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&first_use>()); }

}  // namespace fsdp::dispatch
