// A folder that appears under its name only when it is complete.
#pragma once

#include <filesystem>

namespace fsdp::formats {

// Files are written into a temporary folder next to the target, with which commit() replaces the target. If the object
// is destroyed before commit(), the temporary folder is removed with everything in it, and the target is unchanged.
// Used by one thread.
class StagedFolder {
 public:
  // Creates the temporary folder and its missing parents. If the target is a link, the link is followed.
  explicit StagedFolder(const std::filesystem::path& target);
  ~StagedFolder();
  StagedFolder(const StagedFolder&) = delete;
  StagedFolder& operator=(const StagedFolder&) = delete;

  // The temporary folder, into which the caller writes.
  const std::filesystem::path& path() const { return temporary_; }
  const std::filesystem::path& target() const { return target_; }

  // Gives the folder its name. An existing folder of that name is exchanged in one step if the file system supports
  // that, and then removed with everything in it.
  void commit();

 private:
  void replace_target();

  std::filesystem::path target_;
  std::filesystem::path temporary_;
  bool committed_ = false;
};

// Throws unless the target may be replaced, so that a wrong path does not destroy other files: it must not exist, be an
// empty folder, or contain a file `marker`, as every `what` ("a model folder") does.
void check_replaceable(const std::filesystem::path& target, const char* marker, const char* what);

}  // namespace fsdp::formats
