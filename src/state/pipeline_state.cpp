#include "fsdp/pipeline_state.h"

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>

#include <memory>
#include <set>
#include <unordered_map>
#include <utility>

#include "engine/engine.h"
#include "formats/common/dtype.h"
#include "state/gathered_optimizer.h"
#include "state/held_leaves.h"
#include "state/host_copy.h"
#include "state/memory_order.h"
#include "state/memory_sources.h"
#include "state/merged_groups.h"
#include "state/model_loader.h"
#include "state/model_parts.h"
#include "state/name_map.h"
#include "state/optimizer_loader.h"
#include "state/pipelined_parts.h"
#include "state/rank0_source.h"
#include "state/received_tensors.h"
#include "state/sharded_state.h"
#include "state/stage_exchange.h"

namespace fsdp {
namespace {

using nlohmann::json;
using state::HeldPart;
using state::load_stages;
using state::ModelPart;
using state::parts_of;
using Names = std::vector<std::string>;

c10::Device device_of(const state::ModelParts& parts) { return parts.front().model.engine().device(); }

// With all names in the whole model.
std::vector<HeldPart> held_by(const PipelinedModel& model) {
  return state::with_aliases(state::held_parts(parts_of(model)), model.aliases);
}

// ---------------------------------------------------------------- stages

// The stages of a rank, and which of them save a tied parameter.
class SavingStages {
 public:
  // Collective.
  SavingStages(const PipelinedModel& model, const std::string& what)
      : parts_(parts_of(model)),
        aliases_(model.aliases),
        tied_(state::savers_of_tied(parts_, model.tied_parameters, state::exchange_in(*model.mesh.world(), what),
                                    what)) {}

  const state::ModelParts& parts() const { return parts_; }
  std::vector<HeldPart> whole(const ModelPart& part) const {
    return state::with_aliases(state::whole_parameters(part.model), aliases_);
  }
  bool saves(const ModelPart& part, const std::string& fqn) const {
    const auto found = tied_.find(fqn);
    return found == tied_.end() || found->second == part.stage;
  }

 private:
  const state::ModelParts parts_;
  const state::Aliases aliases_;
  const state::TiedSavers tied_;
};

// Passes whole tensors on to rank 0 or to all ranks.
void pass_on(const PipelinedModel& model, c10::Device device, bool rank0_only,
             const std::vector<state::StageTensor>& own, const state::StageExchange::VisitOwn& visit_own,
             const state::StageExchange::Take& take) {
  const bool is_first_of_stage =
      model.mesh.rank("dp_replicate") == 0 && model.mesh.rank("dp_shard") == 0 && model.mesh.rank("tp") == 0;
  if (rank0_only && !is_first_of_stage) return visit_own([](const Names&, const at::Tensor&) {});
  state::StageExchange exchange(*model.mesh.group("pp"), device, own);
  rank0_only ? exchange.to_rank_0(visit_own, take) : exchange.to_all(visit_own, take);
}

// ---------------------------------------------------------------- gathering a model

std::vector<state::StageTensor> tensors_of(const SavingStages& stages) {
  std::vector<state::StageTensor> tensors;
  for (const ModelPart& part : stages.parts()) {
    for (const HeldPart& held : stages.whole(part)) {
      if (stages.saves(part, held.fqn)) tensors.push_back({held.names, {held.dtype(), held.sizes, held.strides}});
    }
    for (const auto& [name, value] : state::unsharded_tensors(part.model, part.module)) {
      const at::Tensor whole = value.detach();
      tensors.push_back({{name}, {whole.scalar_type(), whole.sizes().vec(), state::elements_of(whole).strides}});
    }
  }
  return tensors;
}

void visit_tensors(const SavingStages& stages, const state::StageExchange::Take& take) {
  for (const ModelPart& part : stages.parts()) {
    std::unordered_map<std::string, Names> names;
    for (HeldPart& held : stages.whole(part)) names.emplace(held.fqn, std::move(held.names));
    part.model.for_each_full_parameter([&](const std::string& fqn, const at::Tensor& full) {
      if (stages.saves(part, fqn)) take(names.at(fqn), full);
    });
    for (const auto& [name, value] : state::unsharded_tensors(part.model, part.module)) take({name}, value.detach());
  }
}

void visit_whole_model(const PipelinedModel& model, const std::string& what, const FullParameterOptions& options,
                       const state::StageExchange::Take& visit) {
  const at::NoGradGuard no_grad;
  const SavingStages stages(model, what);
  pass_on(
      model, device_of(stages.parts()), options.rank0_only, tensors_of(stages),
      [&](const state::StageExchange::Take& take) { visit_tensors(stages, take); },
      [&](const Names& names, const at::Tensor& full) {
        visit(names, state::offloaded(full, options.offload_to_cpu));
      });
}

// ---------------------------------------------------------------- receiving rank 0's values

// Returns what `make` returns on rank 0. Collective.
json text_of_first(const PipelinedModel& model, const std::string& what, const std::function<json()>& make) {
  const auto texts = state::together(state::exchange_in(*model.mesh.world(), what), what,
                                     [&] { return model.mesh.world()->rank() == 0 ? make().dump() : std::string(); });
  return json::parse(texts.front());
}

// The given names of what this rank's stages want, of all given names.
std::set<std::string> wanted_names(const std::set<std::string>& given, const Rename& rename,
                                   const std::vector<Names>& targets) {
  state::NameMap map(given, rename);
  std::set<std::string> wanted;
  for (const Names& names : targets) {
    for (const state::GivenName& found : map.find(names)) wanted.insert(found.given);
  }
  return wanted;
}

std::vector<Names> names_in(const PipelinedModel& model) {
  std::vector<Names> names;
  for (const HeldPart& part : held_by(model)) names.push_back(part.names);
  return names;
}

std::shared_ptr<const state::TensorSource> received_model(const PipelinedModel& model, const std::string& what,
                                                          const FullStateDict& values, const Rename& rename) {
  const state::ModelParts parts = parts_of(model);
  std::shared_ptr<state::WholeTensors> own;
  auto descriptions = state::Rank0Tensors::described(text_of_first(model, what, [&] {
    own = std::make_shared<state::WholeTensors>(values);
    return state::Rank0Tensors::describe(*own);
  }));
  std::vector<Names> targets = names_in(model);
  for (const state::SharedTensor& tensor : state::by_tensor(state::unsharded_tensors(parts))) {
    targets.push_back(tensor.names);
  }
  std::set<std::string> given;
  for (const auto& [name, tensor] : descriptions) given.insert(name);
  return std::make_shared<state::ReceivedTensors>(
      own.get(), std::move(descriptions), wanted_names(given, rename, targets), *model.mesh.world(), device_of(parts));
}

state::SavedOptimizer received_optimizer(const PipelinedModel& model, const std::string& what,
                                         const FullOptimizerState& state, const Rename& rename) {
  const state::ModelParts parts = parts_of(model);
  state::SavedOptimizer own;
  const json text = text_of_first(model, what, [&] {
    own = state::saved_from(state);
    return state::text_of(own);
  });
  state::SavedOptimizer saved{nullptr, text.at("scalars").get<std::map<std::string, state::Numbers>>(),
                              state::parse_groups(text.at("groups"))};
  const std::set<std::string> parameters = wanted_names(saved.parameters(), rename, names_in(model));
  auto descriptions = state::Rank0Tensors::described(text.at("tensors"));
  std::set<std::string> wanted;
  for (const auto& [name, tensor] : descriptions) {
    if (parameters.count(name.substr(0, name.rfind('/'))) > 0) wanted.insert(name);
  }
  saved.tensors = std::make_shared<state::ReceivedTensors>(own.tensors.get(), std::move(descriptions), wanted,
                                                           *model.mesh.world(), device_of(parts));
  return saved;
}

LoadReport load_model(const PipelinedModel& model, const std::string& what, const state::TensorSource& source,
                      const Rename& rename, bool strict) {
  const state::ModelParts parts = parts_of(model);
  std::vector<ShardedModule*> models;
  for (const ModelPart& part : parts) models.push_back(&part.model);
  return load_stages(model, what, strict, [&] {
    return std::make_unique<state::ModelLoader>(models, state::unsharded_tensors(parts), source, rename,
                                                std::vector<SplitTensor>{}, model.aliases);
  });
}

LoadReport load_optimizer(const PipelinedModel& model, const std::string& what, OptimizerState& optimizer,
                          const state::SavedOptimizer& saved, const Rename& rename, bool strict,
                          bool with_options = true) {
  return load_stages(model, what, strict, [&] {
    return std::make_unique<state::OptimizerLoader>(held_by(model), model.mesh.where(), optimizer, saved, rename,
                                                    with_options);
  });
}

// ---------------------------------------------------------------- gathering an optimizer's state

// The state of each stage of this rank as all of its ranks describe it.
std::vector<json> described_stages(const SavingStages& stages, const OptimizerState& optimizer) {
  std::vector<json> described;
  for (const ModelPart& part : stages.parts()) {
    json of_stage = state::described_state(state::held_parts(part.model), optimizer, part.model.engine().mesh());
    for (auto entry = of_stage.begin(); entry != of_stage.end();) {
      entry = stages.saves(part, entry.key()) ? std::next(entry) : of_stage.erase(entry);
    }
    described.push_back(std::move(of_stage));
  }
  return described;
}

std::vector<state::StageTensor> state_tensors_of(const SavingStages& stages, const std::vector<json>& described) {
  std::vector<state::StageTensor> tensors;
  for (size_t i = 0; i < described.size(); ++i) {
    for (const HeldPart& held : state::whole_parameters(stages.parts()[i].model)) {
      const auto entry = described[i].find(held.fqn);
      if (entry == described[i].end()) continue;
      for (const auto& [name, dtype] : entry->at("tensors").items()) {
        const auto scalar = formats::dtype_from_safetensors(dtype.get<std::string>()).value();
        tensors.push_back({{held.fqn, name}, {scalar, held.sizes, held.strides}});
      }
    }
  }
  return tensors;
}

// The groups of all stages. Collective.
std::vector<ParameterGroup> whole_groups(const PipelinedModel& model, const std::string& what,
                                         const OptimizerState& optimizer) {
  const std::vector<HeldPart> held = state::held_parts(parts_of(model));
  const auto texts = state::together(state::exchange_in(*model.mesh.world(), what), what,
                                     [&] { return state::text_of(state::parameter_groups(held, optimizer)).dump(); });
  state::MergedGroups groups;
  for (size_t rank = 0; rank < texts.size(); ++rank) groups.add(state::parse_groups(json::parse(texts[rank])), rank);
  return groups.groups();
}

// The numbers of all stages. Collective.
std::map<std::string, LeafState> whole_numbers(const PipelinedModel& model, const std::string& what,
                                               const std::vector<json>& described) {
  const auto texts = state::together(state::exchange_in(*model.mesh.world(), what), what, [&] {
    json scalars = json::object();
    for (const json& of_stage : described) {
      for (const auto& [fqn, entry] : of_stage.items()) scalars[fqn] = entry.at("scalars");
    }
    return scalars.dump();
  });
  std::map<std::string, LeafState> state;
  for (const std::string& text : texts) {
    const json of_rank = json::parse(text);
    for (const auto& [fqn, numbers] : of_rank.items()) state[fqn].scalars = numbers.get<state::Numbers>();
  }
  return state;
}

}  // namespace

// ---------------------------------------------------------------- models

FullStateDict full_state_dict(const PipelinedModel& model, const FullParameterOptions& options) {
  FullStateDict values;
  visit_whole_model(model, "full_state_dict", options, [&](const Names& names, const at::Tensor& full) {
    const at::Tensor kept = options.offload_to_cpu ? full : full.clone();  // an offloaded tensor is already a copy
    for (const std::string& name : names) values[name] = kept;
  });
  return values;
}

void for_each_full_tensor(const PipelinedModel& model,
                          const std::function<void(const std::string& name, const at::Tensor& full)>& visit,
                          const FullParameterOptions& options) {
  visit_whole_model(model, "for_each_full_tensor", options, [&](const Names& names, const at::Tensor& full) {
    for (const std::string& name : names) visit(name, full);
  });
}

LoadReport load_full_state_dict(const PipelinedModel& model, const FullStateDict& values,
                                const FullLoadOptions& options) {
  const at::NoGradGuard no_grad;
  const std::string what = "load_full_state_dict";
  const std::shared_ptr<const state::TensorSource> source = options.from_rank0
                                                                ? received_model(model, what, values, options.rename)
                                                                : std::make_shared<state::WholeTensors>(values);
  return load_model(model, what, *source, options.rename, options.strict);
}

ShardedStateDict sharded_state_dict(const PipelinedModel& model, const ShardedStateOptions& options) {
  return state::sharded_values(held_by(model), state::unsharded_tensors(parts_of(model)), options);
}

LoadReport load_sharded_state_dict(const PipelinedModel& model, const ShardedStateDict& values,
                                   const LoadOptions& options) {
  const at::NoGradGuard no_grad;
  return load_model(model, "load_sharded_state_dict", state::TensorParts(values), options.rename, options.strict);
}

// ---------------------------------------------------------------- optimizers

FullOptimizerState full_optimizer_state(const PipelinedModel& model, const OptimizerState& optimizer,
                                        const FullParameterOptions& options) {
  const at::NoGradGuard no_grad;
  const std::string what = "full_optimizer_state";
  const SavingStages stages(model, what);
  const std::vector<json> described = described_stages(stages, optimizer);
  FullOptimizerState state{whole_numbers(model, what, described), whole_groups(model, what, optimizer)};
  const auto visit_own = [&](const state::StageExchange::Take& take) {
    for (size_t i = 0; i < described.size(); ++i) {
      state::visit_state(
          stages.parts()[i].model, optimizer, described[i],
          [&](const std::string& fqn, const std::string& name, const at::Tensor& full) { take({fqn, name}, full); });
    }
  };
  pass_on(model, device_of(stages.parts()), options.rank0_only, state_tensors_of(stages, described), visit_own,
          [&](const Names& name, const at::Tensor& full) {
            state.state[name[0]].tensors[name[1]] = options.offload_to_cpu ? state::copy_on_host(full) : full.clone();
          });
  return options.rank0_only && model.mesh.world()->rank() != 0 ? FullOptimizerState() : state;
}

LoadReport load_full_optimizer_state(const PipelinedModel& model, OptimizerState& optimizer,
                                     const FullOptimizerState& state, const FullLoadOptions& options) {
  const at::NoGradGuard no_grad;
  const std::string what = "load_full_optimizer_state";
  const state::SavedOptimizer saved =
      options.from_rank0 ? received_optimizer(model, what, state, options.rename) : state::saved_from(state);
  return load_optimizer(model, what, optimizer, saved, options.rename, options.strict);
}

ShardedOptimizerState sharded_optimizer_state(const PipelinedModel& model, const OptimizerState& optimizer,
                                              const ShardedStateOptions& options) {
  ShardedOptimizerState state = state::sharded_optimizer(state::held_parts(parts_of(model)), optimizer, options);
  state.groups = whole_groups(model, "sharded_optimizer_state", optimizer);
  return state;
}

LoadReport load_sharded_optimizer_state(const PipelinedModel& model, OptimizerState& optimizer,
                                        const ShardedOptimizerState& state, const LoadOptions& options) {
  const at::NoGradGuard no_grad;
  return load_optimizer(model, "load_sharded_optimizer_state", optimizer, state::saved_from(state), options.rename,
                        options.strict, options.optimizer_options);
}

}  // namespace fsdp
