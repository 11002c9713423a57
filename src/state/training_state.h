// A training run's state in a folder: model, buffers, optimizer, and what the caller adds. Saved by any number of
// ranks, with any strategy, units and leaves; loaded by any other.
#pragma once

#include <torch/nn/module.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "fsdp/communicator.h"
#include "fsdp/fully_shard.h"
#include "fsdp/load_report.h"
#include "fsdp/optimizer_state.h"
#include "fsdp/split_tensor.h"

namespace fsdp {

// Tensors in the manifest (checkpoint/manifest.h): "model/FQN", "buffer/FQN", "optimizer/FQN/NAME" (names of
// optimizer_state.h), "rank/RANK/NAME". Its state: "optimizer": {"leaves": {FQN: {"step": 3, …}}, "groups":
// [{"parameters": [FQN, …], "options": {"lr": …}}, …]}, and "user". Split tensors are as parameters; those for
// which an optimizer keeps state are among the leaves, without numbers.
struct TrainingState {
  ShardedModule& model;
  torch::nn::Module& module;            // of `model`: for its buffers
  OptimizerState* optimizer = nullptr;  // null: none
  // What this rank alone has, such as the state of its random numbers, by name (without a slash). Written by saving.
  // Parameters that are not sharded and whose names are here are left out by saving and loading; of the others rank 0's
  // are kept, and are alike on all ranks.
  std::map<std::string, at::Tensor> of_rank = {};
  // What this rank holds of tensors that are split by others than FSDP.
  std::vector<SplitTensor> split = {};
};

// The folder appears under its name, complete and on the disk, on all ranks' return; one that is there is replaced.
// After an error, which all ranks get, what was there is as it was. `user`: rank 0's is kept. Each element is written
// once, by the ranks that hold it. `world`: all ranks, which see the same file system. Collective.
void save_training_state(const std::filesystem::path& folder, const TrainingState& state, const nlohmann::json& user,
                         Communicator& world);

// Returns what `user` was. Each rank reads what it holds. Errors, which all ranks get: whatever CheckpointFolder finds;
// tensors that are missing, too many, or of another shape or dtype than the model's; optimizer state that does not fit.
// Model and optimizer hold anything after an error of reading, and are as they were after one of fitting. Collective.
nlohmann::json load_training_state(const std::filesystem::path& folder, const TrainingState& state,
                                   Communicator& world);

// The same with options, and what came of them.
struct LoadedTrainingState {
  nlohmann::json user;
  nlohmann::json state;  // of the manifest: all that is kept beside tensors
  LoadReport model;      // parameters, buffers and split tensors
  LoadReport optimizer;  // with state of split tensors, NAME/STATE
  // What this rank had as TrainingState::of_rank when as many ranks as now saved the folder; empty otherwise.
  std::map<std::string, at::Tensor> of_rank;
};
LoadedTrainingState load_training_state(const std::filesystem::path& folder, const TrainingState& state,
                                        Communicator& world, const LoadOptions& options);

}  // namespace fsdp
