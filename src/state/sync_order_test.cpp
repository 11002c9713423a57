// The contents of the disk when a checkpoint gets its name.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <set>

#include "formats/common/file_system.h"
#include "state/async_saver.h"
#include "state/testing/state_runs.h"
#include "support/files/temporary_folder.h"
#include "support/ranks/thread_ranks.h"

namespace fsdp::state::sync_order_test {
namespace {

namespace fs = std::filesystem;
using namespace testing;  // this project's namespace
using ::testing::IsEmpty;

// Records which files and folders have changed since they were synced. A file or folder must have been synced, with its
// contents, before it is renamed.
class SyncedNames final : public formats::FileSystem {
 public:
  int open(const char* path, int flags, mode_t mode) override {
    const std::lock_guard lock(mutex_);
    const int file = FileSystem::open(path, flags, mode);
    if (file >= 0) opened_[file] = path;
    if (file >= 0 && (flags & O_CREAT) != 0) changed(path, fs::path(path).parent_path());
    return file;
  }
  ssize_t pwrite(int file, const void* data, size_t size, off_t offset) override {
    const std::lock_guard lock(mutex_);
    changed(opened_.at(file));
    return FileSystem::pwrite(file, data, size, offset);
  }
  int fallocate(int file, off_t size) override {
    const std::lock_guard lock(mutex_);
    changed(opened_.at(file));
    return FileSystem::fallocate(file, size);
  }
  int mkdir(const char* path, mode_t mode) override {
    const std::lock_guard lock(mutex_);
    changed(path, fs::path(path).parent_path());
    return FileSystem::mkdir(path, mode);
  }
  int fsync(int file) override {
    const std::lock_guard lock(mutex_);
    ++syncs;
    unsynced.erase(opened_.at(file));
    return 0;
  }
  int rename(const char* from, const char* to) override { return give_name(from, to, FileSystem::rename(from, to)); }
  int exchange(const char* a, const char* b) override { return give_name(a, b, FileSystem::exchange(a, b)); }

  int64_t syncs = 0;
  std::vector<std::string> names_given;
  std::set<fs::path> unsynced;   // changed, and not on the disk
  std::set<fs::path> too_early;  // not on the disk when their folder got its name

 private:
  template <typename... Paths>
  void changed(const Paths&... paths) {
    (unsynced.insert(paths), ...);
  }
  int give_name(const fs::path& from, const fs::path& to, int result) {
    const std::lock_guard lock(mutex_);
    if (result != 0) return result;
    for (const fs::path& path : unsynced) {
      if (path == from || path.parent_path() == from) too_early.insert(path);
    }
    std::erase_if(unsynced, [&](const fs::path& path) { return path == from || path.parent_path() == from; });
    changed(to.parent_path());
    names_given.push_back(to.filename().string());
    return result;
  }

  std::mutex mutex_;
  std::map<int, fs::path> opened_;
};

class SyncOrder : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(All, SyncOrder, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "async" : "sync"; });

TEST_P(SyncOrder, EverythingIsOnTheDiskBeforeTheFolderGetsItsName) {
  const testing::TemporaryFolder folder;
  SyncedNames files;
  const formats::FileSystemGuard guard(files);
  for (int step : {0, 1}) {  // a new folder, and a folder that replaces it
    run_ranks(2, [&](const std::shared_ptr<Communicator>& world) {
      OneRank run({2, ShardingStrategy::kFullShard, true, false}, world, 17, true);
      if (GetParam()) {
        AsyncSaver saver(world);
        saver.save(folder / "it", run.training_state(), {{"step", step}});
        saver.finish();
      } else {
        save_training_state(folder / "it", run.training_state(), {{"step", step}}, *world);
      }
    });
    EXPECT_EQ(std::count(files.names_given.begin(), files.names_given.end(), "it"), step + 1);
    EXPECT_EQ(files.names_given.back(), "it");  // after all files
    EXPECT_THAT(files.too_early, IsEmpty());
    // The name itself is also on the disk, and nothing of the checkpoint remains to be written.
    EXPECT_EQ(files.unsynced.count(folder.path()), 0u);
    EXPECT_THAT(files.unsynced, IsEmpty());
    EXPECT_GE(files.syncs, (step + 1) * 5);  // two files, the manifest, two folders
  }
}

}  // namespace
}  // namespace fsdp::state::sync_order_test
