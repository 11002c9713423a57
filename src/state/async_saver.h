// Asynchronous saves, one at a time.
#pragma once

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "fsdp/checkpoint.h"
#include "state/async_save.h"

namespace fsdp::state {

// The implementation of AsyncCheckpointer (fsdp/checkpoint.h). Keeps the memory for copies from save to save, as long
// as this object lives: copying into memory that is already allocated takes a fraction of the time. All functions are
// collective. If a save failed, they throw once, on all ranks; the saver remains usable.
class AsyncSaver {
 public:
  explicit AsyncSaver(std::shared_ptr<Communicator> world, SecondSave second = SecondSave::kWait)
      : world_(std::move(world)), second_(second) {}

  // See AsyncSave.
  void save(const std::filesystem::path& folder, const TrainingState& state, nlohmann::json user);

  bool is_saving() const { return save_ != nullptr; }
  // Returns the folder of the save in progress if it has ended by now; see AsyncSave::advance.
  std::optional<std::filesystem::path> advance();
  // Waits for the save in progress and returns its folder. Returns nothing if no save is in progress.
  std::optional<std::filesystem::path> finish();

 private:
  std::shared_ptr<Communicator> world_;
  SecondSave second_;
  std::shared_ptr<HostCopies> copies_ = std::make_shared<HostCopies>();
  std::unique_ptr<AsyncSave> save_;  // the save in progress, or null
};

}  // namespace fsdp::state
