#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "engine/engine.h"
#include "formats/common/tensor_names.h"
#include "formats/own/checkpoint_folder.h"
#include "state/checkpoint_source.h"
#include "state/model_loader.h"
#include "state/optimizer_loader.h"
#include "state/split_state_loader.h"
#include "state/split_tensors.h"
#include "state/together.h"
#include "state/training_state.h"
#include "state/unsharded_tensors.h"

namespace fsdp::state {

namespace {

// The tensors that must be loaded in addition to the sharded parameters.
NamedTensors expected_tensors(const TrainingState& state) {
  NamedTensors tensors = unsharded_tensors(state.parts);
  std::erase_if(tensors, [&](const auto& tensor) { return state.of_rank.count(tensor.first) > 0; });
  return tensors;
}

std::set<std::string> names_of(const std::vector<SplitTensor>& split) {
  std::set<std::string> names;
  for (const SplitTensor& tensor : split) names.insert(tensor.name);
  return names;
}

std::vector<ShardedModule*> models_of(const TrainingState& state) {
  std::vector<ShardedModule*> models;
  for (const ModelPart& part : state.parts) models.push_back(&part.model);
  return models;
}

// A folder, and the loaders for its contents.
struct Loading {
  Loading(const std::filesystem::path& path, const TrainingState& state, const LoadOptions& options)
      : folder(path),
        tensors(model_in(folder)),
        model(models_of(state), expected_tensors(state), tensors, options.rename, state.split) {
    check_split_tensors(state);
    if (!state.optimizer && with_state(state.split).empty()) return;
    saved_optimizer = optimizer_in(folder);
    saved_split = take_saved(saved_optimizer, names_of(state.split), options.rename);
    split_states.emplace(state.split, saved_split, options.rename);
    if (!state.optimizer) return;
    optimizer.emplace(held_parts(state.parts), state.parts.front().model.engine().mesh().where(), *state.optimizer,
                      saved_optimizer, options.rename, options.optimizer_options);
  }

  LoadReport match_optimizer() {
    LoadReport report = split_states ? split_states->match() : LoadReport();
    if (optimizer) append(optimizer->match(), report);
    return report;
  }

  void load(const LoadedTrainingState& agreed) {
    model.load(agreed.model);
    if (split_states) split_states->load(agreed.optimizer);
    if (optimizer) optimizer->load(agreed.optimizer);
  }

  formats::CheckpointFolder folder;
  CheckpointTensors tensors;
  ModelLoader model;
  SavedOptimizer saved_optimizer, saved_split;
  std::optional<SplitStateLoader> split_states;
  std::optional<OptimizerLoader> optimizer;
};

// Reads the rank tensors of this rank, if the folder has one file for each rank.
std::map<std::string, at::Tensor> read_of_rank(const formats::CheckpointFolder& saved, const Communicator& world) {
  std::map<std::string, at::Tensor> tensors;
  if (saved.manifest().files.size() != static_cast<size_t>(world.size())) return tensors;
  const std::string prefix = formats::rank_name(world.rank(), "");
  const auto& stored = saved.manifest().tensors;
  for (auto it = stored.lower_bound(prefix); it != stored.end() && it->first.rfind(prefix, 0) == 0; ++it) {
    const at::Tensor flat = at::empty({it->second.numel()}, at::TensorOptions(it->second.dtype));
    saved.read(it->first, 0, flat.numel(), flat);
    tensors[it->first.substr(prefix.size())] = flat.view(it->second.shape);
  }
  return tensors;
}

}  // namespace

LoadedTrainingState load_training_state(const std::filesystem::path& folder, const TrainingState& state,
                                        Communicator& world, const LoadOptions& options) {
  const at::NoGradGuard no_grad;
  const std::string what = "loading the checkpoint " + folder.string();
  const Exchange exchange = exchange_in(world, what);
  const std::string stages = stages_text(state.parts);
  std::unique_ptr<Loading> loading;
  LoadedTrainingState loaded;
  loaded.model = agree(
      exchange, what, options.strict,
      [&] {
        loading = std::make_unique<Loading>(folder, state, options);
        return loading->model.match();
      },
      stages);
  loaded.optimizer = agree(exchange, what, options.strict, [&] { return loading->match_optimizer(); }, stages);
  together(exchange, what, [&] {
    loading->load(loaded);
    loaded.of_rank = read_of_rank(loading->folder, world);
    loaded.state = loading->folder.manifest().state;
    loaded.user = loaded.state.at("user");
    return std::string();
  });
  return loaded;
}

nlohmann::json load_training_state(const std::filesystem::path& folder, const TrainingState& state,
                                   Communicator& world) {
  return load_training_state(folder, state, world, LoadOptions()).user;
}

}  // namespace fsdp::state
