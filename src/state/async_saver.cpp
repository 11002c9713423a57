#include "state/async_saver.h"

#include <c10/util/Exception.h>

#include <utility>

namespace fsdp::state {

void AsyncSaver::save(const std::filesystem::path& folder, const TrainingState& state, nlohmann::json user) {
  TORCH_CHECK(!save_ || second_ == SecondSave::kWait, "the checkpoint ", folder.string(),
              " is not saved: ", save_->folder().string(), " is still being saved, and SecondSave::kRefuse is set");
  finish();
  save_ = std::make_unique<AsyncSave>(folder, state, std::move(user), world_, copies_);
}

// A save that fails is no longer in progress.
std::optional<std::filesystem::path> AsyncSaver::advance() {
  if (!save_) return std::nullopt;
  std::unique_ptr<AsyncSave> save = std::move(save_);
  if (save->advance()) return save->folder();
  save_ = std::move(save);
  return std::nullopt;
}

std::optional<std::filesystem::path> AsyncSaver::finish() {
  if (!save_) return std::nullopt;
  const std::unique_ptr<AsyncSave> save = std::move(save_);
  save->finish();
  return save->folder();
}

}  // namespace fsdp::state
