// Sharded state dicts: the parts that this rank holds, by original parameter.
#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>

#include <memory>
#include <utility>

#include "engine/engine.h"
#include "fsdp/state_dict.h"
#include "state/held_leaves.h"
#include "state/host_copy.h"
#include "state/memory_order.h"
#include "state/memory_sources.h"
#include "state/model_loader.h"
#include "state/optimizer_loader.h"
#include "state/sharded_state.h"

namespace fsdp {

namespace {

ShardedTensor part_of(const state::HeldPart& part, const at::Tensor& values, const ShardedStateOptions& options) {
  ShardedTensor tensor{values.scalar_type(), part.sizes, part.strides, {}};
  if (part.numel() > 0)
    tensor.parts.push_back({part.begin, part.end, state::offloaded(values.detach(), options.offload_to_cpu)});
  return tensor;
}

ShardedTensor whole(const at::Tensor& value, const ShardedStateOptions& options) {
  state::OrderedElements elements = state::elements_of(value);
  const int64_t numel = value.numel();
  ShardedTensor tensor{value.scalar_type(), value.sizes().vec(), std::move(elements.strides), {}};
  if (numel > 0) tensor.parts.push_back({0, numel, state::offloaded(elements.values, options.offload_to_cpu)});
  return tensor;
}

void add_parts(const std::string& name, ShardedTensor& to, const ShardedTensor& others) {
  TORCH_CHECK(to.dtype == others.dtype && to.sizes == others.sizes && to.strides == others.strides, "add_parts: '",
              name, "' is ", state::shown({to.dtype, to.sizes, {}}), " here and ",
              state::shown({others.dtype, others.sizes, {}}), " there",
              to.sizes == others.sizes && to.dtype == others.dtype ? ", in another memory format" : "");
  to.parts.insert(to.parts.end(), others.parts.begin(), others.parts.end());
}

bool same_groups(const std::vector<ParameterGroup>& a, const std::vector<ParameterGroup>& b) {
  return state::text_of(a) == state::text_of(b);
}

}  // namespace

// ---------------------------------------------------------------- models

ShardedStateDict state::sharded_values(const std::vector<HeldPart>& parts, const NamedTensors& unsharded,
                                       const ShardedStateOptions& options) {
  const at::NoGradGuard no_grad;
  ShardedStateDict values;
  for (const HeldPart& part : parts) {
    const ShardedTensor tensor = part_of(part, part.values(), options);
    for (const std::string& name : part.names) {
      const auto [here, is_new] = values.emplace(name, tensor);
      if (!is_new) add_parts(name, here->second, tensor);
    }
  }
  for (const auto& [name, value] : unsharded) values[name] = whole(value, options);
  return values;
}

ShardedStateDict sharded_state_dict(const ShardedModule& model, const torch::nn::Module& module,
                                    const ShardedStateOptions& options) {
  return state::sharded_values(state::held_parts(model), state::unsharded_tensors(model, module), options);
}

void add_parts(ShardedStateDict& to, const ShardedStateDict& others) {
  for (const auto& [name, tensor] : others) {
    const auto [here, added] = to.emplace(name, tensor);
    if (!added) add_parts(name, here->second, tensor);
  }
}

LoadReport load_sharded_state_dict(ShardedModule& model, torch::nn::Module& module, const ShardedStateDict& values,
                                   const LoadOptions& options) {
  const std::string what = "load_sharded_state_dict";
  std::unique_ptr<state::TensorParts> source;
  return state::load_together(state::exchange_over(model.engine().mesh(), what), what, options.strict, [&] {
    source = std::make_unique<state::TensorParts>(values);
    return std::make_unique<state::ModelLoader>(model, state::unsharded_tensors(model, module), *source,
                                                options.rename);
  });
}

// ---------------------------------------------------------------- optimizers

state::SavedOptimizer state::saved_from(const ShardedOptimizerState& state) {
  state::SavedOptimizer saved;
  ShardedStateDict tensors;
  for (const auto& [fqn, of_parameter] : state.state) {
    for (const auto& [name, tensor] : of_parameter.tensors) tensors[state::state_name(fqn, name)] = tensor;
    saved.scalars[fqn] = of_parameter.scalars;
  }
  saved.tensors = std::make_shared<state::TensorParts>(std::move(tensors));
  saved.groups = state.groups;
  return saved;
}

ShardedOptimizerState state::sharded_optimizer(const std::vector<HeldPart>& parts, const OptimizerState& optimizer,
                                               const ShardedStateOptions& options) {
  const at::NoGradGuard no_grad;
  ShardedOptimizerState state;
  state.groups = state::parameter_groups(parts, optimizer);
  for (const state::HeldPart& part : parts) {
    const auto kept = part.numel() > 0 ? optimizer.leaf(part.leaf) : std::nullopt;
    if (!kept) continue;
    ShardedLeafState& of_parameter = state.state[part.fqn];
    of_parameter.scalars = kept->scalars;
    for (const auto& [name, tensor] : kept->tensors) {
      const ShardedTensor here = part_of(part, tensor.view(-1).narrow(0, part.leaf_offset, part.numel()), options);
      const auto [known, is_new] = of_parameter.tensors.emplace(name, here);
      if (!is_new) add_parts(part.fqn, known->second, here);
    }
  }
  return state;
}

ShardedOptimizerState sharded_optimizer_state(const ShardedModule& model, const OptimizerState& optimizer,
                                              const ShardedStateOptions& options) {
  return state::sharded_optimizer(state::held_parts(model), optimizer, options);
}

void add_parts(ShardedOptimizerState& to, const ShardedOptimizerState& others) {
  TORCH_CHECK(same_groups(to.groups, others.groups), "add_parts: the parameter groups are ",
              state::text_of(to.groups).dump(), " here and ", state::text_of(others.groups).dump(), " there");
  for (const auto& [fqn, of_parameter] : others.state) {
    const auto [here, added] = to.state.emplace(fqn, of_parameter);
    if (added) continue;
    TORCH_CHECK(here->second.scalars == of_parameter.scalars, "add_parts: '", fqn, "' has the numbers ",
                nlohmann::json(here->second.scalars).dump(), " here and ", nlohmann::json(of_parameter.scalars).dump(),
                " there");
    for (const auto& [name, tensor] : of_parameter.tensors) {
      const auto [own, is_new] = here->second.tensors.emplace(name, tensor);
      if (!is_new) add_parts(state::state_name(fqn, name), own->second, tensor);
    }
  }
}

LoadReport load_sharded_optimizer_state(ShardedModule& model, OptimizerState& optimizer,
                                        const ShardedOptimizerState& state, const LoadOptions& options) {
  const std::string what = "load_sharded_optimizer_state";
  state::SavedOptimizer saved;
  return state::load_together(state::exchange_over(model.engine().mesh(), what), what, options.strict, [&] {
    saved = state::saved_from(state);
    return std::make_unique<state::OptimizerLoader>(model, optimizer, saved, options.rename, options.optimizer_options);
  });
}

}  // namespace fsdp
