#include "checkpoint/staged_folder.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <stdio.h>

#include <cerrno>
#include <cstring>

#include "checkpoint/output_file.h"

namespace fsdp::checkpoint {
namespace {

namespace fs = std::filesystem;

bool exchange(const fs::path& a, const fs::path& b) {
  return ::renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE) == 0;
}

void rename_folder(const fs::path& from, const fs::path& to) {
  TORCH_CHECK(::rename(from.c_str(), to.c_str()) == 0, to.string(),
              ": putting the finished folder in place failed: ", std::strerror(errno));
}

fs::path resolve(const fs::path& target) {
  std::error_code failure;
  const fs::path resolved = fs::weakly_canonical(fs::absolute(target), failure);
  TORCH_CHECK(!failure, target.string(), ": cannot be resolved: ", failure.message());
  return resolved.has_filename() ? resolved : resolved.parent_path();
}

}  // namespace

StagedFolder::StagedFolder(const fs::path& target) : target_(resolve(target)), temporary_(temporary_sibling(target_)) {
  std::error_code failure;
  fs::create_directories(target_.parent_path(), failure);
  TORCH_CHECK(!failure, target_.parent_path().string(), ": cannot be created: ", failure.message());
  fs::create_directory(temporary_, failure);
  TORCH_CHECK(!failure, target_.string(), ": cannot be created: ", failure.message());
}

StagedFolder::~StagedFolder() {
  std::error_code ignored;
  fs::remove_all(temporary_, ignored);
}

void StagedFolder::commit() {
  sync_folder(temporary_);
  if (fs::exists(fs::symlink_status(target_))) {
    replace_target();
  } else {
    rename_folder(temporary_, target_);
  }
  sync_folder(target_.parent_path());
}

void StagedFolder::replace_target() {
  std::error_code ignored;
  if (exchange(temporary_, target_)) {
    fs::remove_all(temporary_, ignored);
    return;
  }
  const fs::path old = temporary_sibling(target_);
  rename_folder(target_, old);
  try {
    rename_folder(temporary_, target_);
  } catch (...) {
    ::rename(old.c_str(), target_.c_str());
    throw;
  }
  fs::remove_all(old, ignored);
}

}  // namespace fsdp::checkpoint
