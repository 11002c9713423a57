// ShardedModule: the user's handle, thin over the engine.
#include <c10/util/StringUtil.h>

#include "engine/engine.h"
#include "fsdp/fully_shard.h"
#include "torch_seams/keyed_storage.h"

namespace fsdp {

std::vector<std::pair<std::string, at::Tensor>> ShardedModule::named_parameters() const {
  std::vector<std::pair<std::string, at::Tensor>> result;
  for (const auto& unit : engine().units()) {
    size_t number = 0;
    for (const auto& flat : unit->flat_parameters()) {
      if (engine().options().use_orig_params) {
        for (size_t i = 0; i < flat->parameters().size(); ++i) {
          result.emplace_back(flat->parameters()[i].fqn, flat->original_leaves()[i]);
        }
      } else {
        std::string suffix = number++ == 0 ? "flat_param" : c10::str("flat_param_", number);
        result.emplace_back(c10::str(unit->name(), ".", suffix), flat->flat_leaf());
      }
    }
  }
  return result;
}

std::vector<at::Tensor> ShardedModule::parameters() const {
  std::vector<at::Tensor> result;
  for (auto& [name, leaf] : named_parameters()) {
    result.push_back(leaf);
  }
  return result;
}

std::vector<ShardSlice> ShardedModule::shard_slices() const {
  std::vector<ShardSlice> result;
  for (const auto& unit : engine().units()) {
    for (const auto& flat : unit->flat_parameters()) {
      for (int64_t i = 0; i < flat->layout().num_parameters(); ++i) {
        const ShardedParameter& parameter = flat->parameters()[i];
        ParameterSlice part = flat->slice(i);
        result.push_back({parameter.fqn, parameter.sizes, parameter.strides, part.begin, part.end,
                          flat->slice_of(flat->shard(), i)});
      }
    }
  }
  return result;
}

void ShardedModule::zero_grad(bool set_to_none) {
  engine().notice_cleared_gradients();
  for (const at::Tensor& leaf : parameters()) {
    at::Tensor& gradient = leaf.mutable_grad();
    if (set_to_none) {
      gradient.reset();
    } else if (gradient.defined()) {
      gradient.zero_();
    }
  }
}

void ShardedModule::for_each_full_parameter(
    const std::function<void(const std::string& fqn, const at::Tensor& full)>& visit) {
  engine().for_each_full_parameter(visit);
}

void ShardedModule::with_full_params(const std::function<void()>& body, bool writeback) {
  engine().with_full_params(body, writeback);
}

void ShardedModule::pin(const std::vector<at::Tensor>& parameters, const std::function<void()>& body) {
  std::vector<Unit*> units;
  for (const at::Tensor& parameter : parameters) {
    const seams::StorageOwner* owner = seams::storage_owner(parameter);
    TORCH_CHECK(owner && owner->unit, "fsdp: pin: a tensor of shape ", parameter.sizes(),
                " is not a sharded parameter or a view of one");
    units.push_back(static_cast<Unit*>(owner->unit.load()));
  }
  engine().pin(parameters.empty() ? engine().all_units() : units, body);
}

void ShardedModule::unshard() { engine().unshard(); }
void ShardedModule::reshard() { engine().reshard(); }
void ShardedModule::reset() { engine().reset(); }
EngineStats ShardedModule::stats() const { return engine().stats(); }
void ShardedModule::verify_plan() { engine().verify_plan(); }

Engine& ShardedModule::engine() const { return engine_->current(); }

}  // namespace fsdp
