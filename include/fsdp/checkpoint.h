// Checkpoints of a training run on disk: model, buffers, optimizer and what the caller adds, saved by any number of
// ranks and loaded by any other. docs/checkpoints.md has the format and what is promised.
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

namespace fsdp {

// What a checkpoint is of. Of parameters that are not sharded (Options::ignored_parameters), which must be alike on all
// ranks, rank 0's are kept; so are its buffers.
struct CheckpointedRun {
  ShardedModule& model;
  torch::nn::Module& module;            // the one that `model` was made of: for its buffers
  OptimizerState* optimizer = nullptr;  // on model.parameters(), or some of them; null: none
  // What this rank alone has, such as the states of its random generators, by name (without a slash). A parameter that
  // is not sharded, and differs between ranks, belongs here under its name: it is not asked to be alike then, and
  // loading expects no other of it.
  std::map<std::string, at::Tensor> of_rank = {};
  // What this rank holds of tensors that are split over ranks by others than FSDP, and of their optimizers' state. In
  // the folder they are as parameters are, and any number of ranks loads what any other saved.
  std::vector<SplitTensor> split = {};
};

// Writes the folder, which then appears under its name, complete and on the disk, on all ranks' return; one that is
// there is replaced. `user`: JSON text; rank 0's is kept. After an error, which all ranks get, and which names rank,
// file and reason, what was there is as it was. (Where ranks are killed, or lose one another, a folder .NAME.tmp-… may
// be left beside it: it is no checkpoint, and may be removed when no rank is saving.) `world`: all ranks, which see the
// same file system. Collective.
void save_checkpoint(const std::filesystem::path& folder, const CheckpointedRun& run, const std::string& user,
                     Communicator& world);

struct LoadedCheckpoint {
  std::string user;      // JSON text, as save_checkpoint was given it, but for white space
  LoadReport model;      // parameters, buffers and split tensors, by FQN
  LoadReport optimizer;  // by FQN; state of split tensors as NAME/STATE
  // What this rank had as CheckpointedRun::of_rank; empty when another number of ranks saved the folder.
  std::map<std::string, at::Tensor> of_rank;
};

// Each rank reads what it holds. Errors, which all ranks get: a folder that is no checkpoint, or damaged; with
// LoadOptions::strict whatever does not fit. State of optimizers is left in the folder when `run` has none: parameters'
// without an optimizer, split tensors' when `run` has no state of these either.
// What does not fit is found before anything is changed; after an error of reading, model and optimizer hold anything.
// Collective.
LoadedCheckpoint load_checkpoint(const std::filesystem::path& folder, const CheckpointedRun& run, Communicator& world,
                                 const LoadOptions& options = {});

// What an asynchronous save does while another is under way.
enum class SecondSave : uint8_t {
  kWait,    // waits until that one has ended
  kRefuse,  // is an error; that one goes on
};

class AsyncSaver;

// Saves checkpoints while training goes on, one at a time. No other thread uses the communicator: the ranks take each
// step of a save together, in advance(). All functions are collective, and throw on all ranks, once, when the save
// under way has failed: the folder is as it was then, and the next save can begin.
class AsyncCheckpointer {
 public:
  explicit AsyncCheckpointer(std::shared_ptr<Communicator> world, SecondSave second = SecondSave::kWait);
  // Waits for this rank's thread. A save that has not ended is given up: the folder is as it was.
  ~AsyncCheckpointer();
  AsyncCheckpointer(const AsyncCheckpointer&) = delete;
  AsyncCheckpointer& operator=(const AsyncCheckpointer&) = delete;

  // As save_checkpoint, but returns when what this rank writes is copied to host memory, as much as the shards, split
  // tensors and the optimizers' state take, which is kept for the next save. `run` may change then.
  void save(const std::filesystem::path& folder, const CheckpointedRun& run, const std::string& user);

  // To be called at the same points of all ranks' programs while training goes on, such as once a step; waits for no
  // disk. The folder of the save under way, if it has ended by now.
  std::optional<std::filesystem::path> advance();
  // Waits for the save under way and returns its folder; none: there is none.
  std::optional<std::filesystem::path> finish();

 private:
  std::shared_ptr<Communicator> world_;
  std::unique_ptr<AsyncSaver> saver_;
};

}  // namespace fsdp
