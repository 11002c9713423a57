// The checkpoints of a run: folders output_dir/checkpoint-STEP.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace fsdp::trainer {

struct SavedCheckpoint {
  int64_t step = 0;
  std::filesystem::path path;
};

std::filesystem::path checkpoint_path(const std::filesystem::path& output_dir, int64_t step);

// Those that are complete, by ascending step. Empty where the folder is not there.
std::vector<SavedCheckpoint> saved_checkpoints(const std::filesystem::path& output_dir);

// Folders that are named as checkpoints, but have no manifest.
std::vector<std::filesystem::path> folders_without_manifest(const std::filesystem::path& output_dir);

// Why nothing can be loaded from a checkpoint, as far as its manifest and the sizes of its files tell; empty: it can.
std::string fault_of(const std::filesystem::path& checkpoint);

// Of the sound ones beside `checkpoint`, the newest; for advice.
std::optional<std::filesystem::path> newest_sound_beside(const std::filesystem::path& checkpoint);

// Gives a damaged checkpoint another name, "damaged-checkpoint-STEP", so that it is none of the run's any more. Returns
// it. Throws with its name and the reason.
std::filesystem::path set_aside(const std::filesystem::path& checkpoint);

// Removes a checkpoint: it loses its name first, in one step, so that what is left of a removal that was interrupted is
// none. Throws with its name and the reason.
void remove_checkpoint(const std::filesystem::path& path);

// Removes all but the `limit` (at least 1) checkpoints of the last steps.
void keep_newest(const std::filesystem::path& output_dir, int64_t limit);

// Removes what saves and removals that were interrupted have left. Nobody may be saving to the folder meanwhile.
void remove_leftovers(const std::filesystem::path& output_dir);

}  // namespace fsdp::trainer
