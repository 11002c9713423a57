#include "dispatch/parameter_writes.h"

#include <algorithm>

#include "base/visit_tensors.h"
#include "engine/engine.h"
#include "torch_seams/dispatch_key.h"
#include "torch_seams/in_place_checks.h"
#include "torch_seams/keyed_storage.h"
#include "torch_seams/shard_version.h"

namespace fsdp::dispatch {
namespace {

// Returns the unit of a parameter or of a view of one, or null for other tensors.
engine::Unit* unit_of_parameter(const at::Tensor& tensor) {
  const seams::StorageOwner* owner = seams::has_sharded_key(tensor) ? seams::storage_owner(tensor) : nullptr;
  return owner && owner->kind == seams::StorageOwner::Kind::kParameter ? engine::unit_of(*owner) : nullptr;
}

// Returns the unit of a parameter that an operator would write to outside of a write scope, or null.
engine::Unit* unit_written_through(const at::Tensor& tensor) {
  engine::Unit* unit = unit_of_parameter(tensor);
  if (!unit) return nullptr;
  base::MutexLock lock(unit->mutex);
  return unit->use.writable() ? nullptr : unit;
}

template <typename Visit>
void visit_written(const OperatorInfo& info, const torch::jit::Stack& stack, const Visit& visit) {
  const c10::IValue* arguments = stack.data() + stack.size() - info.num_arguments;
  for (const OperatorInfo::Argument& argument : info.tensors) {
    if (argument.written) base::visit_tensors(arguments[argument.position], visit);
  }
}

std::string name_written(const at::Tensor& tensor) {
  engine::Unit& unit = *unit_of_parameter(tensor);
  return c10::str(unit.where(), ": parameter '", unit.parameter(seams::storage_owner(tensor)->index).fqn, "'");
}

// Replaces tensors in a value that is a tensor or a list of tensors, which may be absent.
template <typename Replace>
void replace_tensors(c10::IValue& value, const Replace& replace) {
  if (value.isTensor()) {
    value = replace(value.toTensor());
  } else if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(replace(tensor));
    value = list;
  } else if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
      list.push_back(tensor ? std::optional(replace(*tensor)) : std::nullopt);
    }
    value = list;
  }
}

bool same_geometry(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && a.strides() == b.strides() && a.storage_offset() == b.storage_offset() &&
         a.is_alias_of(b);
}

}  // namespace

bool ParameterWrites::any(const OperatorInfo& info, const torch::jit::Stack& stack) {
  bool found = false;
  if (info.writes) visit_written(info, stack, [&](const at::Tensor& t) { found = found || unit_written_through(t); });
  return found;
}

ParameterWrites::ParameterWrites(const c10::OperatorHandle& op, const OperatorInfo& info, torch::jit::Stack& stack)
    : op_(op), info_(info) {
  check_graph(stack);
  find_units(stack);
  replace_arguments(stack);
}

// Autograd would refuse to write to a leaf that requires a gradient. A leaf that requires none would become a result of
// the operator, if it is given values that require one.
void ParameterWrites::check_graph(const torch::jit::Stack& stack) {
  bool records = false, has_out = false;
  const c10::IValue* arguments = stack.data() + stack.size() - info_.num_arguments;
  for (const OperatorInfo::Argument& argument : info_.tensors) {
    base::visit_tensors(arguments[argument.position],
                        [&](const at::Tensor& tensor) { records = records || tensor.requires_grad(); });
    has_out = has_out || argument.out;
  }
  if (!records || !at::GradMode::is_enabled()) return;
  visit_written(info_, stack, [&](const at::Tensor& tensor) {
    if (!unit_written_through(tensor)) return;
    seams::check_write_in_graph(tensor);
    const engine::Unit& unit = *unit_of_parameter(tensor);
    const at::Tensor base = seams::base_in_graph(tensor);
    const bool of_parameter =
        std::any_of(unit.flat_parameters().begin(), unit.flat_parameters().end(), [&](const auto& flat) {
          return std::any_of(flat->parameters().begin(), flat->parameters().end(),
                             [&](const auto& parameter) { return parameter.tensor.is_same(base); });
        });
    TORCH_CHECK(
        !of_parameter, "fsdp: ", name_written(tensor), " was given a value that requires a gradient, by ",
        op_.schema().name(),
        ". It would become a result of that operator and be no parameter any more. Write to it in no-grad mode");
  });
  if (!has_out) no_graph_.emplace();
}

void ParameterWrites::find_units(const torch::jit::Stack& stack) {
  visit_written(info_, stack, [&](const at::Tensor& tensor) {
    engine::Unit* unit = unit_written_through(tensor);
    if (unit && unit->pending_cut()) {
      unit->engine().cut_before_backward(*unit);
      unit = unit_of_parameter(tensor);
    }
    if (unit && !write_to(unit)) units_.emplace_back(*unit, op_.schema().name());
  });
}

engine::WriteThrough* ParameterWrites::write_to(const engine::Unit* unit) {
  const auto found =
      std::find_if(units_.begin(), units_.end(), [&](const auto& write) { return &write.unit() == unit; });
  return found == units_.end() ? nullptr : &*found;
}

void ParameterWrites::replace_arguments(torch::jit::Stack& stack) {
  c10::IValue* arguments = stack.data() + stack.size() - info_.num_arguments;
  for (const OperatorInfo::Argument& argument : info_.tensors) {
    const auto replace = [&](const at::Tensor& tensor) { return stand_in(tensor, argument.written); };
    bool any = false;
    base::visit_tensors(arguments[argument.position],
                        [&](const at::Tensor& tensor) { any = any || write_to(unit_of_parameter(tensor)); });
    if (any) replace_tensors(arguments[argument.position], replace);
  }
}

// The same argument in several places has the same stand-in.
at::Tensor ParameterWrites::stand_in(const at::Tensor& tensor, bool written) {
  engine::WriteThrough* write = write_to(unit_of_parameter(tensor));
  if (!write) return tensor;
  const int64_t index = seams::storage_owner(tensor)->index;
  at::Tensor made = write->stand_in(tensor, index, written);
  for (StandIn& known : stand_ins_) {
    if (!known.argument.is_same(tensor)) continue;
    known.written = known.written || written;
    return known.tensor;
  }
  stand_ins_.push_back({tensor, made, made.alias(), written});
  return made;
}

void ParameterWrites::check_geometry() const {
  for (const StandIn& stand_in : stand_ins_) {
    TORCH_CHECK(same_geometry(stand_in.tensor, stand_in.before), "fsdp: ", name_written(stand_in.argument), ": ",
                op_.schema().name(),
                " changed the shape, the strides or the memory of it or of a view of it. These belong to "
                "the engine, so "
                "nothing was written. Write elements in place");
  }
}

at::Tensor ParameterWrites::restored(const at::Tensor& result) const {
  if (!result.defined()) return result;
  for (const StandIn& stand_in : stand_ins_) {
    if (result.is_same(stand_in.tensor)) return stand_in.argument;
  }
  for (const StandIn& stand_in : stand_ins_) {
    TORCH_CHECK(!result.has_storage() || !result.is_alias_of(stand_in.before),
                "fsdp: ", name_written(stand_in.argument), ": ", op_.schema().name(),
                " writes to it and returns a view of it, of which later writes would be lost, so nothing was written. "
                "Return nothing, or the argument itself");
  }
  return result;
}

void ParameterWrites::restore(c10::IValue& result) const {
  bool any = false;
  base::visit_tensors(result, [&](const at::Tensor& tensor) { any = any || !restored(tensor).is_same(tensor); });
  if (any) replace_tensors(result, [this](const at::Tensor& tensor) { return restored(tensor); });
}

void ParameterWrites::finish(torch::jit::Stack& stack) {
  no_graph_.reset();
  check_geometry();
  const size_t results = op_.schema().returns().size();
  for (size_t i = stack.size() - results; i < stack.size(); ++i) restore(stack[i]);
  for (engine::WriteThrough& write : units_) write.check_alike();
  for (engine::WriteThrough& write : units_) write.keep();
  for (const StandIn& stand_in : stand_ins_) {
    if (stand_in.written) seams::bump_version(stand_in.argument);
  }
}

}  // namespace fsdp::dispatch
