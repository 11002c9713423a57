// Checkpoints of a training run on disk: model, buffers, optimizer and data of the caller, saved by any number of ranks
// and loaded by any other number, with any division into the stages of a pipeline. docs/checkpoints.md describes the
// format and the guarantees.
//
//   fsdp::save_checkpoint("run/step-100", {*sharded, *model, state.get()}, R"({"step": 100})", *world);
//   const std::string user = fsdp::load_checkpoint("run/step-100", {*sharded, *model, state.get()}, *world).user;
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fsdp/communicator.h"
#include "fsdp/fully_shard.h"
#include "fsdp/load_report.h"
#include "fsdp/optimizer_state.h"
#include "fsdp/split_tensor.h"

namespace fsdp::state {
class AsyncSaver;
}  // namespace fsdp::state

namespace fsdp {

// The contents of a checkpoint. Parameters that are not sharded (Options::ignored_parameters) must be equal on all
// ranks; rank 0's values are saved. Buffers are also saved from rank 0.
struct CheckpointedRun {
  ShardedModule& model;
  torch::nn::Module& module;            // the module of `model`, for its buffers
  OptimizerState* optimizer = nullptr;  // built on model.parameters() or some of them; null: none
  // Tensors that only this rank has, such as the states of its random generators, by name (without a slash). A
  // parameter that is not sharded and differs between ranks belongs here under its name. It is then not required to be
  // equal on all ranks, and loading expects no other copy of it.
  std::map<std::string, at::Tensor> of_rank = {};
  // This rank's rows of tensors that are split over ranks by other code than FSDP, and of their optimizers' state. The
  // folder stores them like parameters: any number of ranks can load them, whatever number saved them.
  std::vector<SplitTensor> split = {};
};

// A stage of a pipeline (fsdp/pipeline.h) that a rank holds.
struct CheckpointedStage {
  int index = 0;  // in the order of the model
  ShardedModule& model;
  torch::nn::Module& module;  // the module of `model`, for its buffers; named as in the whole model
};

// The contents of a checkpoint of a pipeline. The folder has the whole model, under its names: it can be loaded with
// any other division into stages, or none, and the other way round. Buffers, and parameters that are not sharded, are
// saved from the first rank of each stage.
struct CheckpointedPipeline {
  std::vector<CheckpointedStage> stages;  // those of this rank
  OptimizerState* optimizer = nullptr;    // built on parameters of all of them, with as many groups as on other stages
  std::vector<std::string> tied_parameters = {};   // as PipelineOptions::tied_parameters
  std::map<std::string, at::Tensor> of_rank = {};  // as CheckpointedRun::of_rank
};

// Writes the folder. When all ranks have returned, it is on the disk under its name, complete; an existing folder is
// replaced. `user`: JSON text; rank 0's is stored. If a rank fails, all ranks throw StepFailed (errors.h), which
// names rank, file and reason, and an existing folder is unchanged. (If ranks are killed or lose each other, a folder
// .NAME.tmp-… may remain beside it; it is no checkpoint, and may be removed when no rank is saving.) `world`: all
// ranks, which must see the same file system. Collective.
void save_checkpoint(const std::filesystem::path& folder, const CheckpointedRun& run, const std::string& user,
                     Communicator& world);
void save_checkpoint(const std::filesystem::path& folder, const CheckpointedPipeline& run, const std::string& user,
                     Communicator& world);

struct LoadedCheckpoint {
  std::string user;      // JSON text, as passed to save_checkpoint, except for white space
  LoadReport model;      // parameters, buffers and split tensors, by FQN
  LoadReport optimizer;  // by FQN; state of split tensors as NAME/STATE
  // The rank's CheckpointedRun::of_rank at the time of the save. Empty if another number of ranks saved the folder.
  std::map<std::string, at::Tensor> of_rank;
};

// Loads a checkpoint; each rank reads the parts that it holds. All ranks throw StepFailed if the folder is no
// checkpoint or is damaged, and, with LoadOptions::strict, ErrorOfAllRanks if anything does not fit. Optimizer state is
// not loaded if `run` has none: for parameters, if it has no optimizer; for split tensors, if it has no state of them
// either. Everything is checked before anything is changed. After an error while reading data, the contents of model
// and optimizer are undefined. Collective.
LoadedCheckpoint load_checkpoint(const std::filesystem::path& folder, const CheckpointedRun& run, Communicator& world,
                                 const LoadOptions& options = {});
LoadedCheckpoint load_checkpoint(const std::filesystem::path& folder, const CheckpointedPipeline& run,
                                 Communicator& world, const LoadOptions& options = {});

// What an asynchronous save does while another one is in progress.
enum class SecondSave : uint8_t {
  kWait,    // waits until the other one has ended
  kRefuse,  // throws; the other one continues
};

// Saves checkpoints while training continues, one at a time. No other thread uses the communicator: the ranks take each
// step of a save together, in advance(). All functions are collective. If the save in progress has failed, they throw
// once on all ranks; the folder is then as it was before, and the next save can begin.
class AsyncCheckpointer {
 public:
  explicit AsyncCheckpointer(std::shared_ptr<Communicator> world, SecondSave second = SecondSave::kWait);
  // Waits for this rank's thread. An unfinished save is discarded: the folder is as it was before.
  ~AsyncCheckpointer();
  AsyncCheckpointer(const AsyncCheckpointer&) = delete;
  AsyncCheckpointer& operator=(const AsyncCheckpointer&) = delete;

  // Like save_checkpoint, but returns as soon as this rank's data are copied to host memory. The copy takes as much
  // memory as the shards, split tensors and the optimizers' state, and is kept for the next save. `run` may change
  // afterwards.
  void save(const std::filesystem::path& folder, const CheckpointedRun& run, const std::string& user);
  void save(const std::filesystem::path& folder, const CheckpointedPipeline& run, const std::string& user);

  // Must be called at the same points of all ranks' programs while training continues, for example once in each step.
  // Does not wait for a disk. Returns the folder of the save in progress if it has ended by now.
  std::optional<std::filesystem::path> advance();
  // Waits for the save in progress and returns its folder, or nullopt if there is none.
  std::optional<std::filesystem::path> finish();

 private:
  std::shared_ptr<Communicator> world_;
  std::unique_ptr<state::AsyncSaver> saver_;
};

}  // namespace fsdp
