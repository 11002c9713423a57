#include "fsdp/checkpoint.h"

#include <c10/util/Exception.h>

#include <utility>

#include "state/async_saver.h"
#include "state/together.h"
#include "state/training_state.h"

namespace fsdp {

namespace {

nlohmann::json parsed(const std::string& user, const Communicator& world) {
  if (world.rank() != 0) return {};
  nlohmann::json value = nlohmann::json::parse(user, nullptr, /*allow_exceptions=*/false);
  TORCH_CHECK(!value.is_discarded(), "`user` is not a JSON text: ", user.substr(0, 60));
  return value;
}

// Parses rank 0's `user`. If it is not JSON, all ranks throw.
nlohmann::json parsed_together(const std::filesystem::path& folder, const std::string& user, Communicator& world) {
  nlohmann::json value;
  state::together(world, "saving the checkpoint " + folder.string(), [&] {
    value = parsed(user, world);
    return std::string();
  });
  return value;
}

state::TrainingState state_of(const CheckpointedRun& run) {
  return {{{run.model, run.module}}, run.optimizer, run.of_rank, run.split};
}

state::TrainingState state_of(const CheckpointedPipeline& run) {
  TORCH_CHECK(!run.stages.empty(), "CheckpointedPipeline: this rank has no stage");
  state::TrainingState state{{}, run.optimizer, run.of_rank, {}, run.tied_parameters};
  for (const CheckpointedStage& stage : run.stages) state.parts.push_back({stage.model, stage.module, stage.index});
  return state;
}

template <typename Run>
void save(const std::filesystem::path& folder, const Run& run, const std::string& user, Communicator& world) {
  state::save_training_state(folder, state_of(run), parsed_together(folder, user, world), world);
}

template <typename Run>
LoadedCheckpoint load(const std::filesystem::path& folder, const Run& run, Communicator& world,
                      const LoadOptions& options) {
  state::LoadedTrainingState loaded = state::load_training_state(folder, state_of(run), world, options);
  return {loaded.user.dump(), std::move(loaded.model), std::move(loaded.optimizer), std::move(loaded.of_rank)};
}

}  // namespace

void save_checkpoint(const std::filesystem::path& folder, const CheckpointedRun& run, const std::string& user,
                     Communicator& world) {
  save(folder, run, user, world);
}
void save_checkpoint(const std::filesystem::path& folder, const CheckpointedPipeline& run, const std::string& user,
                     Communicator& world) {
  save(folder, run, user, world);
}

LoadedCheckpoint load_checkpoint(const std::filesystem::path& folder, const CheckpointedRun& run, Communicator& world,
                                 const LoadOptions& options) {
  return load(folder, run, world, options);
}
LoadedCheckpoint load_checkpoint(const std::filesystem::path& folder, const CheckpointedPipeline& run,
                                 Communicator& world, const LoadOptions& options) {
  return load(folder, run, world, options);
}

AsyncCheckpointer::AsyncCheckpointer(std::shared_ptr<Communicator> world, SecondSave second)
    : world_(std::move(world)), saver_(std::make_unique<state::AsyncSaver>(world_, second)) {}

AsyncCheckpointer::~AsyncCheckpointer() = default;

void AsyncCheckpointer::save(const std::filesystem::path& folder, const CheckpointedRun& run, const std::string& user) {
  saver_->save(folder, state_of(run), parsed_together(folder, user, *world_));
}

void AsyncCheckpointer::save(const std::filesystem::path& folder, const CheckpointedPipeline& run,
                             const std::string& user) {
  saver_->save(folder, state_of(run), parsed_together(folder, user, *world_));
}

std::optional<std::filesystem::path> AsyncCheckpointer::advance() { return saver_->advance(); }

std::optional<std::filesystem::path> AsyncCheckpointer::finish() { return saver_->finish(); }

}  // namespace fsdp
