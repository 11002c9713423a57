// A folder that appears under its name only when it is complete.
#pragma once

#include <filesystem>

namespace fsdp::checkpoint {

// Files are written into a temporary folder beside the target, which commit() puts in the target's place.
// Destroyed before that, it is removed with all that is in it and the target is as it was. Used by one
// thread.
class StagedFolder {
 public:
  // Creates the temporary folder, and the folders above it where they are missing. A link as target is
  // followed.
  explicit StagedFolder(const std::filesystem::path& target);
  ~StagedFolder();
  StagedFolder(const StagedFolder&) = delete;
  StagedFolder& operator=(const StagedFolder&) = delete;

  // Where to write.
  const std::filesystem::path& path() const { return temporary_; }
  const std::filesystem::path& target() const { return target_; }

  // Gives the folder its name. A folder that has it is exchanged in one step where the file system can do
  // that, and then removed with everything in it.
  void commit();

 private:
  void replace_target();

  std::filesystem::path target_;
  std::filesystem::path temporary_;
  bool committed_ = false;
};

// Throws unless a folder may take the target's place, so that a wrong path does not cost somebody's files: nothing is
// there, or an empty folder, or one that holds a file `marker`, as every `what` does ("a model folder").
void check_replaceable(const std::filesystem::path& target, const char* marker, const char* what);

}  // namespace fsdp::checkpoint
