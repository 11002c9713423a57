// Tests memory in files: contents, residence, a full disk, no left-over files; and the scope in which tensors are
// allocated there.
#include "base/mapped_files.h"

#include <c10/core/CPUAllocator.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <torch/torch.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>

#include "base/allocation_scope.h"
#include "support/faults/error_of.h"
#include "support/files/temporary_folder.h"

namespace fsdp::base::mapped_files_test {
namespace {

using ::testing::AllOf;
using testing::error_of;
using ::testing::HasSubstr;

class Mapped : public ::testing::Test {
 protected:
  testing::TemporaryFolder temporary_;
  std::string folder_ = temporary_.path();
};

// Returns the bytes of a mapping that are resident for this process; pages that only the system's cache holds do not
// count.
int64_t resident_bytes(const void* memory) {
  std::ifstream maps("/proc/self/smaps");
  char wanted[32];
  std::snprintf(wanted, sizeof wanted, "%lx-", reinterpret_cast<unsigned long>(memory));
  bool found = false;
  for (std::string line; std::getline(maps, line);) {
    found |= line.rfind(wanted, 0) == 0;
    if (found && line.rfind("Rss:", 0) == 0) return std::stoll(line.substr(4)) * 1024;
  }
  return -1;
}

TEST_F(Mapped, PagesLeaveMemoryAndKeepTheirContents) {
  const auto files = MappedFiles::in(folder_);
  constexpr size_t kBytes = 300'000;
  const c10::DataPtr memory = files->allocate(kBytes);
  auto* bytes = static_cast<unsigned char*>(memory.get());
  for (size_t i = 0; i < kBytes; ++i) bytes[i] = static_cast<unsigned char>(i % 251);
  EXPECT_GE(resident_bytes(bytes), static_cast<int64_t>(kBytes));
  EXPECT_TRUE(files->contains(bytes) && files->contains(bytes + kBytes - 1));
  EXPECT_FALSE(files->contains(bytes - 1) || files->contains(files.get()));
  files->page_out(bytes + 10'000, kBytes - 20'000);
  EXPECT_LE(resident_bytes(bytes), 20'000 + 2 * sysconf(_SC_PAGESIZE)) << "less than a page more at either end";
  files->page_out();
  EXPECT_EQ(resident_bytes(bytes), 0);
  for (size_t i = 0; i < kBytes; ++i) ASSERT_EQ(bytes[i], i % 251) << i;
}

TEST_F(Mapped, NothingIsSeenInTheFolder) {
  const auto files = MappedFiles::in(folder_ + "/new/below");
  const c10::DataPtr memory = files->allocate(1);
  EXPECT_TRUE(std::filesystem::is_empty(folder_ + "/new/below"));
  EXPECT_EQ(files->nbytes(), sysconf(_SC_PAGESIZE));
}

TEST_F(Mapped, MemoryIsUsedAgainAndGivenBack) {
  auto files = MappedFiles::in(folder_);
  EXPECT_EQ(MappedFiles::in(folder_ + "/."), files) << "one object for a folder";
  void* first = nullptr;
  {
    const c10::DataPtr memory = files->allocate(100'000);
    first = memory.get();
  }
  EXPECT_EQ(files->nbytes(), 0);
  c10::DataPtr again = files->allocate(100'001);
  EXPECT_EQ(again.get(), first);
  again.clear();
  files->trim();
  EXPECT_EQ(resident_bytes(first), -1) << "unmapped";
  again = files->allocate(8);
  static_cast<double*>(again.get())[0] = 0.5;
  files.reset();
  EXPECT_EQ(static_cast<double*>(again.get())[0], 0.5) << "memory outlives the object that handed it out";
}

// A limit on the size of files simulates a disk without space.
TEST_F(Mapped, NoSpaceIsAnErrorWhenMemoryIsAskedFor) {
  const auto files = MappedFiles::in(folder_);
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{1 << 20, before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  const std::string error = error_of([&] { files->allocate(2 << 20); });
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_THAT(error, AllOf(HasSubstr("offload_path"), HasSubstr("2097152 bytes"), HasSubstr(folder_)));
  EXPECT_EQ(files->nbytes(), 0);
}

TEST_F(Mapped, FoldersThatCannotBeUsedAreNamed) {
  std::ofstream(folder_ + "/file") << "x";
  EXPECT_THAT(error_of([&] { MappedFiles::in(folder_ + "/file"); }),
              AllOf(HasSubstr("offload_path"), HasSubstr("file")));
  EXPECT_THAT(error_of([&] { MappedFiles::in(folder_ + "/file/below"); }), HasSubstr("/file/below"));
  EXPECT_THAT(error_of([] { MappedFiles::in("/proc/self/none"); }), HasSubstr("/proc/self/none"));
}

TEST_F(Mapped, LargeTensorsOfAScopeLieInFiles) {
  const auto files = MappedFiles::in(folder_);
  const torch::Tensor before = torch::arange(40'000.0);
  torch::Tensor inside, small, elsewhere;
  {
    const AllocationScope scope(files);
    inside = torch::zeros_like(before) + before;
    small = torch::zeros({10});
    std::thread([&] { elsewhere = torch::zeros({40'000}); }).join();
    EXPECT_THAT(error_of([&] { AllocationScope nested(files); }), HasSubstr("cannot be nested"));
  }
  const torch::Tensor after = torch::zeros({40'000});
  EXPECT_TRUE(files->contains(inside.data_ptr()));
  for (const torch::Tensor& other : {before, small, elsewhere, after}) EXPECT_FALSE(files->contains(other.data_ptr()));
  files->page_out();
  EXPECT_TRUE(torch::equal(inside, before));
}

TEST_F(Mapped, AnAllocatorInstalledLaterIsNoticed) {
  const auto files = MappedFiles::in(folder_);
  {
    const AllocationScope scope(files);
  }
  c10::Allocator* ours = c10::GetCPUAllocator();
  c10::SetCPUAllocator(c10::GetDefaultCPUAllocator());
  EXPECT_THAT(error_of([&] { AllocationScope scope(files); }), HasSubstr("another allocator"));
  c10::SetCPUAllocator(ours);
  EXPECT_EQ(error_of([&] { AllocationScope scope(files); }), "no error");
}

}  // namespace
}  // namespace fsdp::base::mapped_files_test
