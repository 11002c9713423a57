// Checkpoints of a training run on disk: model, buffers, optimizer and what the caller adds, saved by any number of
// ranks and loaded by any other. docs/checkpoints.md has the format and what is promised.
//
//   fsdp::save_checkpoint("run/step-100", {*sharded, *model, state.get()}, R"({"step": 100})", *world);
//   const std::string user = fsdp::load_checkpoint("run/step-100", {*sharded, *model, state.get()}, *world).user;
#pragma once

#include <torch/nn/module.h>

#include <filesystem>
#include <string>

#include "fsdp/communicator.h"
#include "fsdp/fully_shard.h"
#include "fsdp/load_report.h"
#include "fsdp/optimizer_state.h"

namespace fsdp {

// What a checkpoint is of. Parameters that are not sharded (Options::ignored_parameters) are not in it.
struct Checkpointed {
  ShardedModule& model;
  torch::nn::Module& module;            // the one that `model` was made of: for its buffers
  OptimizerState* optimizer = nullptr;  // on model.parameters(), or some of them; null: none
};

// Writes the folder, which then appears under its name, complete and on the disk, on all ranks' return; one that is
// there is replaced. `user`: JSON text; rank 0's is kept. After an error, which all ranks get, and which names rank,
// file and reason, what was there is as it was. `world`: all ranks, which see the same file system. Collective.
void save_checkpoint(const std::filesystem::path& folder, const Checkpointed& run, const std::string& user,
                     Communicator& world);

struct LoadedCheckpoint {
  std::string user;  // JSON text, as save_checkpoint was given it, but for white space
  LoadReport model;  // parameters and buffers, by FQN
  LoadReport optimizer;
};

// Each rank reads what it holds. Errors, which all ranks get: a folder that is no checkpoint, or damaged; with
// LoadOptions::strict whatever does not fit. The optimizer's state in the folder is left there when `run` has none.
// What does not fit is found before anything is changed; after an error of reading, model and optimizer hold anything.
// Collective.
LoadedCheckpoint load_checkpoint(const std::filesystem::path& folder, const Checkpointed& run, Communicator& world,
                                 const LoadOptions& options = {});

}  // namespace fsdp
