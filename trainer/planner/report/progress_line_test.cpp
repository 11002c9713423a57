// Lines on a terminal, and none elsewhere.
#include "planner/report/progress_line.h"

#include <gtest/gtest.h>

#include <string>

namespace fsdp::planner::progress_line_test {
namespace {

std::string content(std::FILE* file) {
  std::string text;
  std::rewind(file);
  for (int c = std::fgetc(file); c != EOF; c = std::fgetc(file)) text.push_back(static_cast<char>(c));
  return text;
}

TEST(ProgressLine, ReplacesItselfAndGoesAway) {
  std::FILE* file = std::tmpfile();
  ASSERT_NE(file, nullptr);
  {
    ProgressLine line(file, 6);
    line.show("step 1");
    line.show("step 2 of 3");
  }
  EXPECT_EQ(content(file), "\r\033[Kstep 1\r\033[Kstep 2\r\033[K");
  std::fclose(file);
}

TEST(ProgressLine, SaysNothingWithoutATerminal) {
  ProgressLine line(nullptr, 80);
  EXPECT_NO_THROW(line.show("step 1"));
}

}  // namespace
}  // namespace fsdp::planner::progress_line_test
