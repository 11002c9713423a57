#include "comm/shm/shared_memory.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "support/memory/sanitizers.h"

namespace fsdp::comm::shared_memory_test {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

// Returns the bytes of all in-memory files of the system.
int64_t shared_bytes_of_system() {
  std::ifstream in("/proc/meminfo");
  for (std::string name; in >> name;) {
    if (name == "Shmem:") {
      int64_t kib = 0;
      in >> kib;
      return kib * 1024;
    }
  }
  return -1;
}

// Runs `body` in a separate process and returns its exit status.
template <typename Body>
int status_of_process(const Body& body) {
  const pid_t child = fork();
  if (child == 0) _exit(body());
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

TEST(SharedMemory, MappingsShareTheirContents) {
  const auto made = SharedMemory::create(3 * kMiB);
  const auto opened = SharedMemory::open(made->ticket());
  ASSERT_TRUE(opened);
  EXPECT_EQ(opened->nbytes(), 3 * kMiB);
  EXPECT_NE(made->data(), opened->data());
  std::memcpy(made->data() + kMiB, "there", 6);
  EXPECT_STREQ(opened->data() + kMiB, "there");
  EXPECT_TRUE(made->contains(made->data() + 3 * kMiB - 1));
  EXPECT_FALSE(made->contains(made->data() + 3 * kMiB));
  EXPECT_FALSE(made->contains(opened->data()));
}

TEST(SharedMemory, AnotherProcessOpensItByItsTicket) {
  const auto made = SharedMemory::create(kMiB);
  const std::string ticket = made->ticket();
  EXPECT_EQ(status_of_process([&] {
              const auto opened = SharedMemory::open(ticket);
              if (!opened) return 1;
              opened->data()[7] = 42;
              return 0;
            }),
            0);
  EXPECT_EQ(made->data()[7], 42);
}

TEST(SharedMemory, OutOfReachIsNull) {
  std::string ticket;
  {
    const auto gone = SharedMemory::create(kMiB);
    ticket = gone->ticket();
  }
  EXPECT_FALSE(SharedMemory::open(ticket)) << "no such descriptor any more";
  EXPECT_FALSE(SharedMemory::open(""));
  EXPECT_FALSE(SharedMemory::open("1 2 3"));
  // A ticket as it is read in another container: the process id names another process, whose descriptor is another
  // file.
  const auto one = SharedMemory::create(kMiB), other = SharedMemory::create(kMiB);
  const std::string of_one = one->ticket(), of_other = other->ticket();
  const std::string mixed = of_one.substr(0, of_one.rfind(' ')) + of_other.substr(of_other.rfind(' '));
  EXPECT_FALSE(SharedMemory::open(mixed));
}

// Returns the bytes of the unnamed files that this process has open.
int64_t shared_bytes_of_this_process() {
  int64_t nbytes = 0;
  for (const auto& link : std::filesystem::directory_iterator("/proc/self/fd")) {
    struct stat status{};
    std::error_code gone;  // the iterator's own descriptor
    const std::string target = std::filesystem::read_symlink(link, gone).string();
    if (target.starts_with("/memfd:fsdp") && stat(link.path().c_str(), &status) == 0) nbytes += status.st_blocks * 512;
  }
  return nbytes;
}

TEST(SharedMemory, TakesNoMemoryBeforeItIsWrittenAndGivesItBack) {
  const int64_t before = shared_bytes_of_this_process();
  const auto made = SharedMemory::create(int64_t{1} << 40);
  EXPECT_LT(shared_bytes_of_this_process() - before, 8 * kMiB);
  made->reserve(kMiB, 64 * kMiB);
  EXPECT_GT(shared_bytes_of_this_process() - before, 56 * kMiB);
  made->data()[2 * kMiB] = 1;
  made->release(kMiB, 64 * kMiB);
  EXPECT_LT(shared_bytes_of_this_process() - before, 8 * kMiB);
  EXPECT_EQ(made->data()[2 * kMiB], 0);
}

// Only whole pages are released: data beside the range stay.
TEST(SharedMemory, GivesBackNothingBesideTheRange) {
  const auto made = SharedMemory::create(kMiB);
  std::memset(made->data(), 5, 4 * 4096);
  made->release(100, 2 * 4096);
  EXPECT_EQ(made->data()[99], 5);
  EXPECT_EQ(made->data()[4096 - 1], 5);
  EXPECT_EQ(made->data()[4096], 0);
  EXPECT_EQ(made->data()[2 * 4096 + 100], 5);
}

TEST(SharedMemory, AKilledProcessLeavesNothing) {
  const int64_t before = shared_bytes_of_system();
  if (before < 0) GTEST_SKIP() << "the system does not tell";
  EXPECT_EQ(status_of_process([] {
              const auto made = SharedMemory::create(64 * kMiB);
              std::memset(made->data(), 1, 64 * kMiB);
              raise(SIGKILL);
              return 0;
            }),
            128 + SIGKILL);
  // Other programs may also share memory for a moment.
  for (int look = 0; look < 1000 && shared_bytes_of_system() - before >= 8 * kMiB; ++look) usleep(10000);
  EXPECT_LT(shared_bytes_of_system() - before, 8 * kMiB);
}

TEST(SharedMemory, ALimitOnTheSizeOfFilesIsAnErrorAtOnce) {
  EXPECT_EQ(status_of_process([] {
              std::signal(SIGXFSZ, SIG_IGN);
              const rlimit limit{16 << 20, 16 << 20};
              setrlimit(RLIMIT_FSIZE, &limit);
              try {
                SharedMemory::create(64 * kMiB);
              } catch (const std::exception& error) {
                const std::string text = error.what();
                return text.find("67108864 bytes") == text.npos || text.find("(ulimit -f)") == text.npos ? 1 : 0;
              }
              return 2;
            }),
            0);
}

TEST(SharedMemory, ALimitOnAddressesIsNamed) {
  if (!testing::kAddressesCanBeLimited) GTEST_SKIP() << "a sanitizer needs the addresses";
  EXPECT_EQ(status_of_process([] {
              const rlimit limit{int64_t{1} << 30, int64_t{1} << 30};
              setrlimit(RLIMIT_AS, &limit);
              try {
                SharedMemory::create(int64_t{1} << 31);
              } catch (const std::exception& error) {
                const std::string text = error.what();
                return text.find("no addresses for 2147483648") == text.npos || text.find("(ulimit -v)") == text.npos;
              }
              return true;
            }),
            0);
}

}  // namespace
}  // namespace fsdp::comm::shared_memory_test
