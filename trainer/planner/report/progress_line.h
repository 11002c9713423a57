// A line on a terminal that says what the program is doing.
#pragma once

#include <cstdio>
#include <string>

namespace fsdp::planner {

// Shows nothing where stderr is no terminal. A process and its forked children may show their lines with one object;
// the process that made it removes the line.
class ProgressLine {
 public:
  ProgressLine();
  // Writes to `terminal`, which may be null, lines of at most `width` characters.
  ProgressLine(std::FILE* terminal, size_t width);
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  // Replaces the line.
  void show(const std::string& text);
  // Removes the line, so that something else may be written.
  void remove();

 private:
  std::FILE* terminal_;
  size_t width_;
};

}  // namespace fsdp::planner
