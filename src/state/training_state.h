// A training run's state in a folder: model, buffers, optimizer, and the caller's additions. It may be saved and loaded
// by different numbers of ranks, with different strategies, units and leaves.
#pragma once

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "fsdp/communicator.h"
#include "fsdp/load_report.h"
#include "fsdp/optimizer_state.h"
#include "fsdp/split_tensor.h"
#include "state/model_parts.h"

namespace fsdp::state {

// Tensors in the manifest (formats/own/manifest.h): "model/FQN", "buffer/FQN", "optimizer/FQN/NAME" (names of
// optimizer_state.h), "rank/RANK/NAME". State in the manifest: "optimizer": {"leaves": {FQN: {"step": 3, …}}, "groups":
// [{"parameters": [FQN, …], "options": {"lr": …}}, …]}, and "user". Split tensors are stored like parameters; those
// that have optimizer state are listed among the leaves, without numbers.
struct TrainingState {
  ModelParts parts;
  OptimizerState* optimizer = nullptr;  // of all parts; null: none
  // Values that only this rank has, such as its random number state, by name (without a slash). Saving writes them.
  // Saving and loading skip parameters that are not sharded and whose names are here. All other parameters that are not
  // sharded must be the same on all ranks that hold the same parts; the checkpoint has those of the first of them.
  std::map<std::string, at::Tensor> of_rank = {};
  // This rank's part of the tensors that are split by code other than FSDP.
  std::vector<SplitTensor> split = {};
  // FQNs of parameters of which two stages of a pipeline have a copy. The first of the two saves it, both load it.
  std::vector<std::string> tied = {};
};

// Saves the state. When all ranks have returned, the folder is at its name, complete and on the disk; an existing
// folder is replaced. After an error, which all ranks get, an existing folder is unchanged. `user`: rank 0's value is
// saved. Each element is written once, by a rank that holds it. `world`: all ranks, which must see the same file
// system. Collective.
void save_training_state(const std::filesystem::path& folder, const TrainingState& state, const nlohmann::json& user,
                         Communicator& world);

// Returns the saved `user`. Each rank reads the part that it holds. Errors, which all ranks get: all errors of
// CheckpointFolder; tensors that are missing, unexpected, or of another shape or dtype than the model's; optimizer
// state that does not fit. If state does not fit, model and optimizer are unchanged; after a read error their contents
// are undefined. Collective.
nlohmann::json load_training_state(const std::filesystem::path& folder, const TrainingState& state,
                                   Communicator& world);

// load_training_state with options, and its results.
struct LoadedTrainingState {
  nlohmann::json user;
  nlohmann::json state;  // state of the manifest: everything except the tensors
  LoadReport model;      // parameters, buffers and split tensors
  LoadReport optimizer;  // includes state of split tensors as NAME/STATE
  // This rank's TrainingState::of_rank, if as many ranks as now saved the folder; empty otherwise.
  std::map<std::string, at::Tensor> of_rank;
};
LoadedTrainingState load_training_state(const std::filesystem::path& folder, const TrainingState& state,
                                        Communicator& world, const LoadOptions& options);

}  // namespace fsdp::state
