#include "comm/shm/memory_headroom.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "support/files/temporary_folder.h"

namespace fsdp::comm::memory_headroom_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kMiB = int64_t{1} << 20;

// A file system with the files that the kernel would show.
class Headroom : public ::testing::Test {
 protected:
  Headroom() { write("proc/meminfo", "MemTotal: 9000000 kB\nMemAvailable:    8192 kB\n"); }
  void write(const fs::path& path, const std::string& text) { folder_.write(path, text); }
  MemoryHeadroom headroom() const { return memory_headroom(root_); }

  testing::TemporaryFolder folder_;
  const fs::path root_ = folder_.path();
};

TEST_F(Headroom, WithoutLimitsIsTheMemoryOfTheMachine) {
  EXPECT_EQ(headroom().nbytes, 8 * kMiB);
  EXPECT_EQ(headroom().limit, "this machine");
  write("proc/self/cgroup", "0::/user\n");
  write("sys/fs/cgroup/user/memory.max", "max\n");
  write("sys/fs/cgroup/user/memory.current", "4096\n");
  EXPECT_EQ(headroom().nbytes, 8 * kMiB);
}

TEST_F(Headroom, IsTheRestOfTheGroupsLimit) {
  write("proc/self/cgroup", "0::/a/b\n");
  write("sys/fs/cgroup/a/b/memory.max", "5242880\n");
  write("sys/fs/cgroup/a/b/memory.current", "3145728\n");
  EXPECT_EQ(headroom().nbytes, 2 * kMiB);
  EXPECT_THAT(headroom().limit, AllOf(HasSubstr("a/b/memory.max"), HasSubstr("5 MiB")));
  write("sys/fs/cgroup/a/b/memory.stat", "anon 1\ninactive_file 1048576\n");
  EXPECT_EQ(headroom().nbytes, 3 * kMiB) << "caches can be dropped";
  write("sys/fs/cgroup/a/b/memory.stat", "anon 1\ninactive_file 524288\nactive_file 262144\nslab_reclaimable 262144\n");
  EXPECT_EQ(headroom().nbytes, 3 * kMiB) << "those in use as well";
}

TEST_F(Headroom, GroupsAboveLimitToo) {
  write("proc/self/cgroup", "0::/a/b\n");
  write("sys/fs/cgroup/a/memory.max", "1048576\n");
  write("sys/fs/cgroup/a/memory.current", "2097152\n");
  EXPECT_EQ(headroom().nbytes, 0);
}

// A container sees its own group at the mount point, whatever the path is.
TEST_F(Headroom, OfAContainer) {
  write("proc/self/cgroup", "0::/\n");
  write("sys/fs/cgroup/memory.max", "4194304\n");
  write("sys/fs/cgroup/memory.current", "1048576\n");
  EXPECT_EQ(headroom().nbytes, 3 * kMiB);
}

TEST_F(Headroom, OfVersionOne) {
  write("proc/self/cgroup", "9:cpu:/x\n7:memory:/docker/1\n0::/\n");
  write("sys/fs/cgroup/memory/docker/1/memory.limit_in_bytes", "6291456\n");
  write("sys/fs/cgroup/memory/docker/1/memory.usage_in_bytes", "2097152\n");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  write("sys/fs/cgroup/memory/memory.usage_in_bytes", "9000000000\n");
  EXPECT_EQ(headroom().nbytes, 4 * kMiB);
  write("sys/fs/cgroup/memory/docker/1/memory.stat", "inactive_file 5\ntotal_inactive_file 1048576\n");
  EXPECT_EQ(headroom().nbytes, 5 * kMiB);
}

TEST_F(Headroom, UnreadableFilesLimitNothing) {
  fs::remove_all(root_ / "proc");
  EXPECT_EQ(headroom().nbytes, std::numeric_limits<int64_t>::max());
  write("proc/self/cgroup", "nonsense\n0::/a\n");
  write("sys/fs/cgroup/a/memory.max", "lots\n");
  EXPECT_EQ(headroom().nbytes, std::numeric_limits<int64_t>::max());
}

TEST_F(Headroom, ErrorsHaveTheFigures) {
  check_headroom(8 * kMiB, "unit 'l0'", headroom());
  try {
    check_headroom(9 * kMiB, "unit 'l0'", headroom());
    ADD_FAILURE() << "no error";
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what_without_backtrace(),
                AllOf(HasSubstr("unit 'l0' needs 9 MiB"), HasSubstr("8 MiB are left: this machine")));
  }
}

TEST(HeadroomHere, IsSomething) {
  EXPECT_GT(memory_headroom().nbytes, 0);
  EXPECT_LT(memory_headroom().nbytes, int64_t{1} << 60);
}

}  // namespace
}  // namespace fsdp::comm::memory_headroom_test
