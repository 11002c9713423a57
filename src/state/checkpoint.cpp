#include "fsdp/checkpoint.h"

#include <c10/util/Exception.h>

#include <utility>

#include "state/together.h"
#include "state/training_state.h"

namespace fsdp {

namespace {

nlohmann::json parsed(const std::string& user, const Communicator& world) {
  if (world.rank() != 0) return {};
  nlohmann::json value = nlohmann::json::parse(user, nullptr, /*allow_exceptions=*/false);
  TORCH_CHECK(!value.is_discarded(), "`user` is no JSON text: ", user.substr(0, 60));
  return value;
}

}  // namespace

void save_checkpoint(const std::filesystem::path& folder, const Checkpointed& run, const std::string& user,
                     Communicator& world) {
  nlohmann::json value;
  together(world, "saving the checkpoint " + folder.string(), [&] {
    value = parsed(user, world);
    return std::string();
  });
  save_training_state(folder, {run.model, run.module, run.optimizer}, value, world);
}

LoadedCheckpoint load_checkpoint(const std::filesystem::path& folder, const Checkpointed& run, Communicator& world,
                                 const LoadOptions& options) {
  LoadedTrainingState loaded = load_training_state(folder, {run.model, run.module, run.optimizer}, world, options);
  return {loaded.user.dump(), std::move(loaded.model), std::move(loaded.optimizer)};
}

}  // namespace fsdp
