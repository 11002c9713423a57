#include "formats/common/staged_folder.h"

#include <cerrno>
#include <cstring>

#include "base/check.h"
#include "formats/common/file_system.h"
#include "formats/common/output_file.h"

namespace fsdp::formats {
namespace {

namespace fs = std::filesystem;

bool exchange(const fs::path& a, const fs::path& b) {
  return uninterrupted([&] { return file_system().exchange(a.c_str(), b.c_str()); }) == 0;
}

void rename_folder(const fs::path& from, const fs::path& to) {
  FSDP_CHECK_WITH(FileError, uninterrupted([&] { return file_system().rename(from.c_str(), to.c_str()); }) == 0,
                  to.string(), ": putting the finished folder in place failed: ", std::strerror(errno));
}

fs::path resolve(const fs::path& target) {
  std::error_code failure;
  const fs::path resolved = fs::weakly_canonical(fs::absolute(target), failure);
  FSDP_CHECK_WITH(FileError, !failure, target.string(), ": cannot be resolved: ", failure.message());
  return resolved.has_filename() ? resolved : resolved.parent_path();
}

}  // namespace

void check_replaceable(const fs::path& target, const char* marker, const char* what) {
  std::error_code ignored;
  if (!fs::exists(target, ignored)) return;
  FSDP_CHECK_WITH(FileError, fs::is_directory(target, ignored), target.string(), ": exists and is not a folder");
  FSDP_CHECK_WITH(FileError, fs::is_empty(target, ignored) || fs::exists(target / marker, ignored), target.string(),
                  ": is not empty and holds no ", marker, ", so it is not ", what,
                  " and is not replaced; choose another folder or remove it");
}

StagedFolder::StagedFolder(const fs::path& target) : target_(resolve(target)), temporary_(temporary_sibling(target_)) {
  make_folders(target_.parent_path());
  FSDP_CHECK_WITH(FileError, uninterrupted([&] { return file_system().mkdir(temporary_.c_str(), 0777); }) == 0,
                  target_.string(), ": cannot be created: ", std::strerror(errno));
}

StagedFolder::~StagedFolder() {
  if (!committed_) remove_tree(temporary_);
}

void StagedFolder::commit() {
  sync_folder(temporary_);
  if (fs::exists(fs::symlink_status(target_))) {
    replace_target();
  } else {
    rename_folder(temporary_, target_);
  }
  committed_ = true;
  sync_folder(target_.parent_path());
}

void StagedFolder::replace_target() {
  if (exchange(temporary_, target_)) {
    remove_tree(temporary_);
    return;
  }
  const fs::path old = temporary_sibling(target_);
  rename_folder(target_, old);
  try {
    rename_folder(temporary_, target_);
  } catch (...) {
    file_system().rename(old.c_str(), target_.c_str());
    throw;
  }
  remove_tree(old);
}

}  // namespace fsdp::formats
