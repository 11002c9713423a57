// Asynchronous saves, one at a time.
#pragma once

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "fsdp/checkpoint.h"
#include "state/async_save.h"

namespace fsdp {

// What AsyncCheckpointer (fsdp/checkpoint.h) is made of. The memory for copies is kept from save to save, as long as
// this object: a copy into memory that is there already takes a fraction of the time. All functions are collective, and
// throw on all ranks when a save has failed (once; the saver can be used on).
class AsyncSaver {
 public:
  explicit AsyncSaver(std::shared_ptr<Communicator> world, SecondSave second = SecondSave::kWait)
      : world_(std::move(world)), second_(second) {}

  // See AsyncSave.
  void save(const std::filesystem::path& folder, const TrainingState& state, nlohmann::json user);

  bool is_saving() const { return save_ != nullptr; }
  // The folder of the save under way if it has ended by now; see AsyncSave::advance.
  std::optional<std::filesystem::path> advance();
  // Waits for the save under way and returns its folder; none: there is none.
  std::optional<std::filesystem::path> finish();

 private:
  std::shared_ptr<Communicator> world_;
  SecondSave second_;
  std::shared_ptr<HostCopies> copies_ = std::make_shared<HostCopies>();
  std::unique_ptr<AsyncSave> save_;  // that has not ended
};

}  // namespace fsdp
