// Full state dicts of optimizers.
#include <ATen/core/grad_mode.h>

#include <memory>
#include <utility>

#include "engine/engine.h"
#include "fsdp/state_dict.h"
#include "state/gathered_optimizer.h"
#include "state/held_leaves.h"
#include "state/host_copy.h"
#include "state/optimizer_loader.h"
#include "state/rank0_source.h"

namespace fsdp {

namespace {

using nlohmann::json;

state::SavedOptimizer sent_by_rank0(const state::SavedOptimizer& own, const json& text, const engine::Engine& engine) {
  return {std::make_shared<state::Rank0Tensors>(own.tensors, text.at("tensors"), engine.mesh(), engine.device()),
          text.at("scalars").get<std::map<std::string, state::Numbers>>(), state::parse_groups(text.at("groups"))};
}

}  // namespace

FullOptimizerState full_optimizer_state(ShardedModule& model, const OptimizerState& optimizer,
                                        const FullParameterOptions& options) {
  const at::NoGradGuard no_grad;
  model.diagnostics().verify_sharding();
  const ProcessMesh& mesh = model.engine().mesh();
  const bool keeps = !options.rank0_only || mesh.is_first();
  const json all = state::described_state(state::held_parts(model), optimizer, mesh);
  FullOptimizerState state;
  if (keeps) {
    state.groups = state::parameter_groups(state::held_parts(model), optimizer);
    for (const auto& [fqn, entry] : all.items()) state.state[fqn].scalars = entry.at("scalars").get<state::Numbers>();
  }
  state::visit_state(
      model, optimizer, all, [&](const std::string& fqn, const std::string& name, const at::Tensor& full) {
        if (!keeps) return;
        state.state[fqn].tensors[name] = options.offload_to_cpu ? state::copy_on_host(full) : full.clone();
      });
  return state;
}

LoadReport load_full_optimizer_state(ShardedModule& model, OptimizerState& optimizer, const FullOptimizerState& state,
                                     const FullLoadOptions& options) {
  const std::string what = "load_full_optimizer_state";
  const engine::Engine& engine = model.engine();
  const state::Exchange exchange = state::exchange_over(engine.mesh(), what);
  state::SavedOptimizer saved;
  json sent;
  if (options.from_rank0) {
    sent = state::text_of_rank0(exchange, what, engine.mesh(), [&] {
      saved = state::saved_from(state);
      return state::text_of(saved);
    });
  }
  return state::load_together(exchange, what, options.strict, [&] {
    saved = options.from_rank0 ? sent_by_rank0(saved, sent, engine) : state::saved_from(state);
    return std::make_unique<state::OptimizerLoader>(model, optimizer, saved, options.rename);
  });
}

}  // namespace fsdp
