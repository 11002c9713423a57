// Local state dicts of optimizers: state of leaves in their layout.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>

#include <memory>
#include <set>
#include <utility>

#include "engine/engine.h"
#include "fsdp/state_dict.h"
#include "state/held_leaves.h"
#include "state/host_copy.h"
#include "state/load_together.h"
#include "state/local_state.h"
#include "state/refusal.h"
#include "state/tensor_source.h"

namespace fsdp {

namespace {

std::map<const at::TensorImpl*, std::string> leaf_names(const state::KeyedModels& models) {
  std::map<const at::TensorImpl*, std::string> names;
  for (const state::KeyedModel& keyed : models) {
    for (const auto& [name, leaf] : keyed.model.named_parameters()) {
      names[leaf.unsafeGetTensorImpl()] = keyed.prefix + name;
    }
  }
  return names;
}

const std::string& name_of(const std::map<const at::TensorImpl*, std::string>& names, const at::Tensor& leaf) {
  const auto found = names.find(leaf.unsafeGetTensorImpl());
  state::check_leaf(found != names.end(), leaf);
  return found->second;
}

class LocalOptimizerLoader final : public state::Loader {
 public:
  LocalOptimizerLoader(const state::KeyedModels& models, OptimizerState& optimizer, const LocalOptimizerState& state)
      : models_(models),
        optimizer_(optimizer),
        state_(state),
        names_(leaf_names(models)),
        groups_(optimizer.groups()) {}

  LoadReport match() override {
    LoadReport report;
    match_layouts(report);
    std::set<std::string> grouped;
    for (const ParameterGroup& group : state_.groups) grouped.insert(group.parameters.begin(), group.parameters.end());
    for (size_t group = 0; group < groups_.size(); ++group) {
      for (const at::Tensor& leaf : groups_[group]) match(leaf, grouped, report);
      match_group(group, report);
    }
    for (const auto& [name, of_leaf] : state_.state) {
      if (expected_.count(name) == 0) report.unexpected.push_back(name);
    }
    return report;
  }

  void load(const LoadReport& agreed) override {
    const at::NoGradGuard no_grad;
    const std::set<std::string> loaded(agreed.loaded.begin(), agreed.loaded.end());
    for (size_t group = 0; group < groups_.size(); ++group) {
      for (const at::Tensor& leaf : groups_[group]) {
        const std::string& name = name_of(names_, leaf);
        if (loaded.count(name) > 0) optimizer_.set_leaf(leaf, copy_of(name, leaf));
      }
      if (fitting_groups_.count(group) > 0) optimizer_.set_options(group, state_.groups[group].options);
    }
  }

 private:
  // Compares the layouts of flat shards. If a layout differs, no leaf of the shard fits.
  void match_layouts(LoadReport& report) {
    for (const state::KeyedModel& keyed : models_) match_layouts(keyed, report);
  }

  void match_layouts(const state::KeyedModel& keyed, LoadReport& report) {
    for (const state::FlatShard& shard : state::flat_shards({keyed})) {
      const auto given = state_.layouts.find(shard.name);
      std::optional<Mismatch> differs;
      if (given == state_.layouts.end()) {
        differs = Mismatch{shard.name, "not there", "a flat shard"};
      } else {
        differs = state::difference(shard.name, given->second, shard.layout);
      }
      if (!differs) continue;
      report.mismatched.push_back(*differs);
      misfits_.insert(shard.name);
      for (const std::string& fqn : shard.layout.fqns) misfits_.insert(keyed.prefix + fqn);
    }
  }

  void match(const at::Tensor& leaf, const std::set<std::string>& grouped, LoadReport& report) {
    const std::string& name = name_of(names_, leaf);
    expected_.insert(name);
    if (misfits_.count(name) > 0) return;
    if (grouped.count(name) == 0) {
      report.missing.push_back(name);
      return;
    }
    if (const auto given = state_.state.find(name); given != state_.state.end()) {
      for (const auto& [key, tensor] : given->second.tensors) {
        if (tensor.sizes() != leaf.sizes()) {
          report.mismatched.push_back({name + "/" + key, state::shown(tensor), state::shown(leaf)});
          return;
        }
      }
      const std::string refused =
          state::refusal_of(optimizer_, leaf, state::dtypes_of(given->second), given->second.scalars);
      if (!refused.empty()) {
        report.mismatched.push_back({name, refused, "state of this optimizer"});
        return;
      }
    }
    report.loaded.push_back(name);
  }

  void match_group(size_t group, LoadReport& report) {
    std::vector<std::string> names;
    for (const at::Tensor& leaf : groups_[group]) names.push_back(name_of(names_, leaf));
    const bool there = group < state_.groups.size();
    if (there && state_.groups[group].parameters == names) {
      const std::string refused = state::refusal_of(optimizer_, group, state_.groups[group].options);
      if (refused.empty()) {
        fitting_groups_.insert(group);
      } else {
        report.mismatched.push_back({c10::str("parameter group ", group), refused, "options of this optimizer"});
      }
      return;
    }
    report.mismatched.push_back(
        {c10::str("parameter group ", group),
         there ? c10::str("of ", c10::Join(", ", state_.groups[group].parameters)) : "not there",
         c10::str("of ", c10::Join(", ", names))});
  }

  std::optional<LeafState> copy_of(const std::string& name, const at::Tensor& leaf) const {
    const auto given = state_.state.find(name);
    if (given == state_.state.end()) return std::nullopt;
    LeafState copy{{}, given->second.scalars};
    for (const auto& [key, tensor] : given->second.tensors) {
      copy.tensors[key] = at::empty_like(leaf, leaf.options().dtype(tensor.scalar_type()).requires_grad(false));
      copy.tensors[key].copy_(tensor);
    }
    return copy;
  }

  state::KeyedModels models_;
  OptimizerState& optimizer_;
  const LocalOptimizerState& state_;
  std::map<const at::TensorImpl*, std::string> names_;
  std::vector<std::vector<at::Tensor>> groups_;
  std::set<std::string> misfits_;   // leaves of flat shards with another layout
  std::set<std::string> expected_;  // names of leaves
  std::set<size_t> fitting_groups_;
};

}  // namespace

namespace state {

LocalOptimizerState local_optimizer(const KeyedModels& models, const OptimizerState& optimizer,
                                    const ShardedStateOptions& options) {
  const at::NoGradGuard no_grad;
  const auto names = leaf_names(models);
  LocalOptimizerState state;
  for (const FlatShard& shard : flat_shards(models)) state.layouts[shard.name] = shard.layout;
  for (const std::vector<at::Tensor>& leaves : optimizer.groups()) {
    ParameterGroup group{{}, optimizer.options(state.groups.size())};
    for (const at::Tensor& leaf : leaves) {
      const std::string& name = name_of(names, leaf);
      group.parameters.push_back(name);
      const auto kept = optimizer.leaf(leaf);
      if (!kept) continue;
      LeafState& of_leaf = state.state[name];
      of_leaf.scalars = kept->scalars;
      for (const auto& [key, tensor] : kept->tensors) {
        of_leaf.tensors[key] = offloaded(tensor.detach(), options.offload_to_cpu);
      }
    }
    state.groups.push_back(std::move(group));
  }
  return state;
}

std::unique_ptr<Loader> local_optimizer_loader(const KeyedModels& models, OptimizerState& optimizer,
                                               const LocalOptimizerState& state) {
  return std::make_unique<LocalOptimizerLoader>(models, optimizer, state);
}

}  // namespace state

LocalOptimizerState local_optimizer_state(const ShardedModule& model, const OptimizerState& optimizer,
                                          const ShardedStateOptions& options) {
  return state::local_optimizer({{model}}, optimizer, options);
}

LoadReport load_local_optimizer_state(ShardedModule& model, OptimizerState& optimizer, const LocalOptimizerState& state,
                                      bool strict) {
  const std::string what = "load_local_optimizer_state";
  return state::load_together(state::exchange_over(model.engine().mesh(), what), what, strict,
                              [&] { return state::local_optimizer_loader({{model}}, optimizer, state); });
}

}  // namespace fsdp
