// Full state dicts of models.
#include <ATen/core/grad_mode.h>

#include <memory>
#include <unordered_map>
#include <utility>

#include "engine/engine.h"
#include "fsdp/state_dict.h"
#include "state/host_copy.h"
#include "state/memory_sources.h"
#include "state/model_loader.h"
#include "state/rank0_source.h"

namespace fsdp {

namespace {

using Names = std::vector<std::string>;

// Visits each tensor once, with all of its names.
void visit_tensors(ShardedModule& model, const torch::nn::Module& module,
                   const std::function<void(const Names& names, const at::Tensor& full)>& visit,
                   const FullParameterOptions& options) {
  const state::NamedTensors unsharded = state::unsharded_tensors(model, module);
  std::unordered_map<std::string, Names> names;
  for (state::HeldPart& part : state::held_parts(model)) names.emplace(part.fqn, std::move(part.names));
  model.for_each_full_parameter([&](const std::string& fqn, const at::Tensor& full) { visit(names.at(fqn), full); },
                                options);
  if (options.rank0_only && !model.engine().mesh().is_first()) return;
  for (const auto& [name, value] : unsharded) {
    visit({name}, options.offload_to_cpu ? state::copy_on_host(value.detach()) : value.detach());
  }
}

}  // namespace

void for_each_full_tensor(ShardedModule& model, const torch::nn::Module& module,
                          const std::function<void(const std::string& name, const at::Tensor& full)>& visit,
                          const FullParameterOptions& options) {
  const at::NoGradGuard no_grad;
  visit_tensors(
      model, module,
      [&](const Names& names, const at::Tensor& full) {
        for (const std::string& name : names) visit(name, full);
      },
      options);
}

FullStateDict full_state_dict(ShardedModule& model, const torch::nn::Module& module,
                              const FullParameterOptions& options) {
  const at::NoGradGuard no_grad;
  FullStateDict values;
  visit_tensors(
      model, module,
      [&](const Names& names, const at::Tensor& full) {
        const at::Tensor kept = options.offload_to_cpu ? full : full.clone();  // an offloaded tensor is already a copy
        for (const std::string& name : names) values[name] = kept;
      },
      options);
  return values;
}

LoadReport load_full_state_dict(ShardedModule& model, torch::nn::Module& module, const FullStateDict& values,
                                const FullLoadOptions& options) {
  const std::string what = "load_full_state_dict";
  const ProcessMesh& mesh = model.engine().mesh();
  const state::Exchange exchange = state::exchange_over(mesh, what);
  std::shared_ptr<const state::TensorSource> source;
  nlohmann::json sent;
  if (options.from_rank0) {
    sent = state::text_of_rank0(exchange, what, mesh, [&] {
      source = std::make_shared<state::WholeTensors>(values);
      return state::Rank0Tensors::describe(*source);
    });
  }
  return state::load_together(exchange, what, options.strict, [&] {
    if (options.from_rank0) {
      source = std::make_shared<state::Rank0Tensors>(std::move(source), sent, mesh, model.engine().device());
    } else {
      source = std::make_shared<state::WholeTensors>(values);
    }
    return std::make_unique<state::ModelLoader>(model, state::unsharded_tensors(model, module), *source,
                                                options.rename);
  });
}

}  // namespace fsdp
