// Saving while training goes on.
#pragma once

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "fsdp/communicator.h"
#include "state/host_copies.h"
#include "state/save_target.h"
#include "state/training_state.h"

namespace fsdp {

// One save. Its constructor copies what this rank writes to host memory, after which the state may change; a thread of
// its own writes it. The ranks take each step of the save together, in the thread that trains: advance() looks whether
// all of them can. So no other thread ever uses the communicator.
//
//   kWriting     each rank's thread writes its file
//   kCommitting  all files are there: rank 0's thread writes the manifest and gives the folder its name
//   kEnded       complete, or failed, which advance() or finish() has thrown
class AsyncSave {
 public:
  // As save_training_state. `copies`: the memory to copy to, which no other save may use until this one has ended. Both
  // `world` and `state.model` are used during the call and advance(), finish() only. Collective.
  AsyncSave(const std::filesystem::path& folder, const TrainingState& state, nlohmann::json user,
            std::shared_ptr<Communicator> world, std::shared_ptr<HostCopies> copies);
  // Waits for this rank's thread. A save that is not complete is given up: the folder is as it was before.
  ~AsyncSave();
  AsyncSave(const AsyncSave&) = delete;
  AsyncSave& operator=(const AsyncSave&) = delete;

  // Whether the save has ended; waits for no disk. Throws, on all ranks and once, if it failed. Collective: to be
  // called at the same points of all ranks' programs, such as once a training step; costs one small exchange.
  bool advance();
  // Waits for the end. Errors as advance(). Collective.
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
  nlohmann::json groups_;
  SaveTarget target_;
  Stage stage_ = Stage::kWriting;
  std::unique_ptr<Task> task_;  // of the stage, on this rank; destroyed before what it uses
};

}  // namespace fsdp
