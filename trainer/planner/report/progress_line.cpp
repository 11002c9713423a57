#include "planner/report/progress_line.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

namespace fsdp::planner {
namespace {

constexpr size_t kUsualWidth = 80;
// Moves to the line's begin and deletes until its end.
constexpr const char* kDeleteLine = "\r\033[K";

bool takes_escapes() {
  const char* const kind = std::getenv("TERM");
  return isatty(STDERR_FILENO) != 0 && kind != nullptr && std::strcmp(kind, "dumb") != 0;
}

size_t width_of_stderr() {
  winsize size{};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1 ? size.ws_col : kUsualWidth;
}

}  // namespace

// A line that fills the terminal would continue on the next one, where it could not be removed.
ProgressLine::ProgressLine() : ProgressLine(takes_escapes() ? stderr : nullptr, width_of_stderr() - 1) {}

ProgressLine::ProgressLine(std::FILE* terminal, size_t width) : terminal_(terminal), width_(width) {}

ProgressLine::~ProgressLine() { remove(); }

void ProgressLine::show(const std::string& text) {
  if (terminal_ == nullptr) return;
  std::fprintf(terminal_, "%s%s", kDeleteLine, text.substr(0, width_).c_str());
  std::fflush(terminal_);
}

void ProgressLine::remove() {
  if (terminal_ == nullptr) return;
  std::fputs(kDeleteLine, terminal_);
  std::fflush(terminal_);
}

}  // namespace fsdp::planner
