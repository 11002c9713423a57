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

// Returns the checkpoints that have a manifest, by ascending step; none if `output_dir` does not exist.
std::vector<SavedCheckpoint> saved_checkpoints(const std::filesystem::path& output_dir);

// Returns the folders that are named like checkpoints but have no manifest.
std::vector<std::filesystem::path> folders_without_manifest(const std::filesystem::path& output_dir);

// Returns why nothing can be loaded from a checkpoint, judged by its manifest and the sizes of its files, or an empty
// string if it is sound.
std::string fault_of(const std::filesystem::path& checkpoint);

// Returns the newest sound checkpoint beside `checkpoint`, or nothing if there is none. Errors suggest it to the user.
std::optional<std::filesystem::path> newest_sound_beside(const std::filesystem::path& checkpoint);

// Renames a damaged checkpoint to "damaged-checkpoint-STEP" (numbered if that name is taken), so that it is no longer
// one of the run's checkpoints. Returns its new path. Throws an error with the checkpoint's name and the reason.
std::filesystem::path set_aside(const std::filesystem::path& checkpoint);

// Removes a checkpoint. Renames it first, in one step, so that the remains of an interrupted removal do not count as a
// checkpoint. Throws an error with the checkpoint's name and the reason.
void remove_checkpoint(const std::filesystem::path& path);

// Keeps the `limit` (at least 1) checkpoints with the highest steps and removes the others.
void keep_newest(const std::filesystem::path& output_dir, int64_t limit);

// Removes the temporary folders of interrupted saves and removals. No process may save to the folder at the same time.
void remove_leftovers(const std::filesystem::path& output_dir);

}  // namespace fsdp::trainer
