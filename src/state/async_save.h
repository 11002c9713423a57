// Saving while training continues.
#pragma once

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "fsdp/communicator.h"
#include "state/host_copies.h"
#include "state/save_target.h"
#include "state/training_state.h"

namespace fsdp::state {

// One asynchronous save. The constructor copies what this rank writes to host memory; after that the state may change.
// A separate thread writes the copies to disk. The ranks take each step of the save together, in the training thread:
// advance() checks whether all ranks are ready for the next step. Therefore no other thread ever uses the communicator.
//
//   kWriting     each rank's thread writes its file
//   kCommitting  all files are written: rank 0's thread writes the manifest and gives the folder its name
//   kEnded       the save is complete, or it failed and advance() or finish() threw the error
class AsyncSave {
 public:
  // As save_training_state. `copies` is the memory to copy to; no other save may use it until this one has ended.
  // `world` and `state.model` are used only during this call and in advance() and finish(). Collective.
  AsyncSave(const std::filesystem::path& folder, const TrainingState& state, nlohmann::json user,
            std::shared_ptr<Communicator> world, std::shared_ptr<HostCopies> copies);
  // Waits for this rank's thread. An incomplete save is discarded: the folder is as it was before.
  ~AsyncSave();
  AsyncSave(const AsyncSave&) = delete;
  AsyncSave& operator=(const AsyncSave&) = delete;

  // Takes the next step of the save if all ranks are ready, and returns whether the save has ended. Does not wait for
  // the disk. If the save failed, throws once, on all ranks. Collective: must be called at the same points of every
  // rank's program, such as once in each training step. Costs one small exchange.
  bool advance();
  // Waits for the end of the save. Errors as in advance(). Collective.
  void finish();

  const std::filesystem::path& folder() const { return target_.folder(); }

 private:
  enum class Stage : uint8_t { kWriting, kCommitting, kEnded };
  class Task;

  bool all_have_done(bool wait);
  void take_next_step();
  void move_to(Stage next);

  std::shared_ptr<Communicator> world_;
  std::shared_ptr<HostCopies> copies_;
  nlohmann::json user_;
  SaveTarget target_;
  Stage stage_ = Stage::kWriting;
  std::unique_ptr<Task> task_;  // this rank's task of the stage; destroyed before the members it uses
};

}  // namespace fsdp::state
