// Tests files that grow while the disk is full from time to time.
#include "report/appended_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "support/files/temporary_folder.h"

namespace fsdp::trainer::appended_file_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A file on a disk that accepts `room_` more bytes.
class AppendedFileTest : public ::testing::Test {
 protected:
  AppendedFile open(size_t most_kept = 1000) {
    const int file = ::open(folder_.path("f").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    return AppendedFile(folder_.path("f"), file, [this](const std::string& text) { said_.push_back(text); },
                        {.most_kept = most_kept, .write = [this](auto... call) { return write(call...); }});
  }
  std::string text() const { return folder_.read("f"); }

  testing::TemporaryFolder folder_;
  size_t room_ = 1000;
  std::vector<std::string> said_;

 private:
  ssize_t write(int file, const void* data, size_t size, off_t offset) {
    if (room_ == 0) {
      errno = ENOSPC;
      return -1;
    }
    const ssize_t written = ::pwrite(file, data, std::min(size, room_), offset);
    room_ -= static_cast<size_t>(written);
    return written;
  }
};

TEST_F(AppendedFileTest, WritesEachRecordAtOnce) {
  AppendedFile file = open();
  file.append("one\n");
  EXPECT_EQ(text(), "one\n");
  file.append("two\n");
  EXPECT_EQ(text(), "one\ntwo\n");
  EXPECT_EQ(file.finish(), "");
  EXPECT_THAT(said_, IsEmpty());
}

TEST_F(AppendedFileTest, KeepsLinesThatAFullDiskRefuses) {
  AppendedFile file = open();
  room_ = 6;  // ends within the second record
  for (const char* record : {"one\n", "two\n", "three\n"}) file.append(record);
  EXPECT_EQ(text(), "one\n");
  EXPECT_THAT(said_, ElementsAre(AllOf(HasSubstr(folder_.path("f") + ": cannot write: No space left on device"),
                                       HasSubstr("training continues"))));
  room_ = 3;  // less than the kept records need
  file.append("four\n");
  EXPECT_EQ(text(), "one\n");
  room_ = 1000;
  file.append("five\n");
  EXPECT_EQ(text(), "one\ntwo\nthree\nfour\nfive\n");
  ASSERT_EQ(said_.size(), 2U);
  EXPECT_THAT(said_[1], HasSubstr("can be written again: 4 line(s)"));
  EXPECT_EQ(file.finish(), "");
  room_ = 0;
  file.append("six\n");
  EXPECT_EQ(said_.size(), 3U);
}

TEST_F(AppendedFileTest, TriesAgainAtTheEndAndNamesMissingLines) {
  {
    AppendedFile file = open();
    room_ = 0;
    file.append("one\n");
    file.append("two\n");
    EXPECT_THAT(file.finish(), AllOf(HasSubstr("2 line(s)"), HasSubstr("No space left on device")));
    room_ = 4;
    EXPECT_THAT(file.finish(), HasSubstr("1 line(s)"));
    EXPECT_EQ(text(), "one\n");
    room_ = 1000;
  }
  EXPECT_EQ(text(), "one\ntwo\n");
}

TEST_F(AppendedFileTest, DropsTheOldestBeyondItsBoundAndSaysHowMany) {
  AppendedFile file = open(/*most_kept=*/8);
  room_ = 0;
  for (const char* record : {"one\n", "two\n", "six\n", "ten\n"}) file.append(record);
  ASSERT_EQ(said_.size(), 2U);
  EXPECT_THAT(said_[1], AllOf(HasSubstr("more than 8 bytes"), HasSubstr("the oldest are dropped")));
  room_ = 1000;
  EXPECT_THAT(file.finish(), HasSubstr("2 line(s)"));
  EXPECT_EQ(text(), "six\nten\n");
}

// A disk may refuse all writes, even the removal of bytes.
TEST_F(AppendedFileTest, ContinuesWithinAPartlyWrittenRecord) {
  const std::string path = folder_.write("pipe-like", "");
  // Opened for reading only: ftruncate fails, and the test writes through another descriptor.
  const int other = ::open(path.c_str(), O_WRONLY | O_CLOEXEC), own = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  size_t room = 5;
  AppendedFile file(path, own, [](const std::string&) {},
                    {.most_kept = 7, .write = [&](int, const void* data, size_t size, off_t offset) -> ssize_t {
                       if (room == 0) return errno = EIO, -1;
                       const ssize_t written = ::pwrite(other, data, std::min(size, room), offset);
                       room -= static_cast<size_t>(written);
                       return written;
                     }});
  for (const char* record : {"one\n", "two\n", "six\n", "ten\n"}) file.append(record);
  EXPECT_EQ(folder_.read("pipe-like"), "one\nt");
  room = 1000;
  EXPECT_THAT(file.finish(), HasSubstr("1 line(s)"));
  EXPECT_EQ(folder_.read("pipe-like"), "one\ntwo\nten\n");
  ::close(other);
}

}  // namespace
}  // namespace fsdp::trainer::appended_file_test
