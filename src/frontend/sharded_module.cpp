// ShardedModule: the user's handle, a thin layer over the engine.
#include <c10/util/StringUtil.h>

#include <torch/optim/lbfgs.h>

#include "engine/engine.h"
#include "engine/full_parameters.h"
#include "engine/owner_updates.h"
#include "fsdp/sharded_module.h"
#include "torch_seams/keyed_storage.h"

namespace fsdp {

std::vector<std::pair<std::string, at::Tensor>> ShardedModule::named_parameters() const {
  engine().preparation().follow_requires_grad();
  std::vector<std::pair<std::string, at::Tensor>> result;
  for (const auto& unit : engine().units()) {
    for (size_t number = 0; number < unit->flat_parameters().size(); ++number) {
      const auto& flat = unit->flat_parameters()[number];
      if (engine().options().use_orig_params) {
        for (size_t i = 0; i < flat->parameters().size(); ++i) {
          result.emplace_back(flat->parameters()[i].fqn, flat->original_leaves()[i]);
        }
      } else {
        result.emplace_back(unit->names().flat_parameter(number), flat->flat_leaf());
      }
    }
  }
  return result;
}

std::vector<at::Tensor> ShardedModule::parameters() const {
  std::vector<at::Tensor> result;
  for (auto& [name, leaf] : named_parameters()) result.push_back(leaf);
  return result;
}

std::vector<ShardSlice> ShardedModule::shard_slices() const {
  std::vector<ShardSlice> result;
  for (const auto& unit : engine().units()) {
    for (const auto& flat : unit->flat_parameters()) {
      for (int64_t i = 0; i < flat->layout().num_parameters(); ++i) {
        const flat::ShardedParameter& parameter = flat->parameters()[i];
        flat::ParameterSlice part = flat->slice(i);
        result.push_back({parameter.fqn, parameter.sizes, parameter.strides, part.begin, part.end,
                          flat->slice_of(flat->shard(), i)});
      }
    }
  }
  return result;
}

void ShardedModule::set_requires_grad(const at::Tensor& parameter, bool on) {
  const seams::StorageOwner* owner = parameter.defined() ? seams::storage_owner(parameter) : nullptr;
  fsdp::engine::Unit* unit =
      owner && owner->kind == seams::StorageOwner::Kind::kParameter ? fsdp::engine::unit_of(*owner) : nullptr;
  TORCH_CHECK(unit && &unit->engine() == &engine() && unit->parameter(owner->index).tensor.is_same(parameter),
              "fsdp: set_requires_grad: a tensor is not a parameter of this module");
  parameter.set_requires_grad(on);
  engine().preparation().follow_requires_grad();
}

void ShardedModule::zero_grad(bool set_to_none) {
  engine().passes().discard_accumulated();
  for (const at::Tensor& leaf : parameters()) {
    at::Tensor& gradient = leaf.mutable_grad();
    if (set_to_none) {
      gradient.reset();
    } else if (gradient.defined()) {
      gradient.zero_();
    }
  }
  engine().gradients().trim();
}

void ShardedModule::wait_for_gradients() { engine().gradients().reducer().finish_all(); }

void ShardedModule::set_reductions_see_norm(bool on) { engine().gradients().settings().sees_norm = on; }
void ShardedModule::for_each_full_parameter(
    const std::function<void(const std::string& fqn, const at::Tensor& full)>& visit,
    const FullParameterOptions& options) {
  fsdp::engine::for_each_full_parameter(engine(), visit, options);
}

void ShardedModule::with_offloaded_memory(const std::function<void()>& body) {
  engine().options().memory.with_offloaded_memory(body);
}

void ShardedModule::page_out() const {
  if (const auto& files = engine().options().memory.files()) files->page_out();
}

void ShardedModule::summon_full_params(const SummonOptions& options, const std::function<void()>& body) {
  fsdp::engine::summon_full_params(engine(), options, body);
}

void ShardedModule::with_full_params(const std::function<void()>& body, bool writeback) {
  fsdp::engine::summon_full_params(engine(), {.writeback = writeback}, body);
}

void ShardedModule::update_whole_parameters(const std::function<void(const WholeParameter& parameter)>& update) {
  fsdp::engine::update_whole_parameters(engine(), update);
}

void ShardedModule::check_optimizer(const torch::optim::Optimizer& optimizer) {
  TORCH_CHECK(!dynamic_cast<const torch::optim::LBFGS*>(&optimizer),
              "fsdp: torch::optim::LBFGS cannot work on shards: ",
              "its inner products run over all elements of all parameters, of which a rank holds a part. Use an ",
              "optimizer that works element by element, or ShardedModule::update_whole_parameters");
}

void ShardedModule::pin(const std::vector<at::Tensor>& parameters, const std::function<void()>& body) {
  std::vector<engine::Unit*> units;
  for (const at::Tensor& parameter : parameters) {
    const seams::StorageOwner* owner = seams::storage_owner(parameter);
    TORCH_CHECK(owner && owner->unit && owner->kind == seams::StorageOwner::Kind::kParameter,
                "fsdp: pin: a tensor of shape ", parameter.sizes(), " is not a sharded parameter or a view of one");
    units.push_back(engine::unit_of(*owner));
  }
  engine().pin(parameters.empty() ? engine().tree().all() : units, body);
}

UnshardHandle ShardedModule::unshard(bool async_op) {
  engine().unshard(engine().tree().all(), async_op);
  return {engine().shared_from_this(), engine().tree().all()};
}
UnshardHandle ShardedModule::unshard(const torch::nn::Module& module, bool async_op) {
  std::vector<engine::Unit*> units = engine().tree().made_for(&module);
  engine().unshard(units, async_op);
  return {engine().shared_from_this(), units};
}
namespace {

void set_prefetch(engine::Engine& engine, const torch::nn::Module& module, const ShardedModule::ModuleList& modules,
                  Pass pass) {
  auto units_of = [&](const torch::nn::Module& one) {
    std::vector<engine::Unit*> units = engine.tree().made_for(&one);
    for (const engine::Unit* unit : units) {
      TORCH_CHECK(!unit->pending_cut(), "fsdp: ", unit->where(),
                  ": prefetching cannot be set before its units are made (Options::auto_units). Call cut_units first");
    }
    return units;
  };
  std::vector<engine::Unit*> targets;
  for (const torch::nn::Module& target : modules) {
    std::vector<engine::Unit*> units = units_of(target);
    targets.insert(targets.end(), units.begin(), units.end());
  }
  for (engine::Unit* unit : units_of(module)) unit->switches().prefetch(pass, targets);
}

}  // namespace

void ShardedModule::set_modules_to_forward_prefetch(const torch::nn::Module& module, const ModuleList& modules) {
  set_prefetch(engine(), module, modules, Pass::kForward);
}

void ShardedModule::set_modules_to_backward_prefetch(const torch::nn::Module& module, const ModuleList& modules) {
  set_prefetch(engine(), module, modules, Pass::kBackward);
}

void ShardedModule::reshard() { engine().gatherer().reshard_all(); }
void ShardedModule::reshard(const torch::nn::Module& module) {
  engine().gatherer().reshard(engine().tree().made_for(&module));
}

void UnshardHandle::wait() {
  if (engine_) engine_->gatherer().wait_for(units_);
  engine_.reset();
}
void ShardedModule::set_full_precision(bool on) { engine().precision().set(on); }
bool ShardedModule::full_precision() const { return engine().precision().on(); }
void ShardedModule::reset() { engine().passes().reset(); }
void ShardedModule::cut_units() { engine().cut_units(); }
ExecutionOrder ShardedModule::execution_order() const { return engine().cutter().execution_order(); }

engine::Engine& ShardedModule::engine() const { return engine_->current(); }

}  // namespace fsdp
