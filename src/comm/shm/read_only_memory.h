// Memory that this process must not write to for a while, with a message if it does.
#pragma once

#include <cstddef>
#include <string>

namespace fsdp::comm {

// A range of whole pages. A write to it while it is read-only prints a line on stderr and then ends the process by
// SIGSEGV, as it would without this class; a signal handler that was installed before the first ReadOnlyMemory runs
// then.
//
// Threads: one at a time for each object.
class ReadOnlyMemory {
 public:
  // `text`: the line that is printed.
  ReadOnlyMemory(char* begin, size_t nbytes, const std::string& text);
  // Leaves the memory writable.
  ~ReadOnlyMemory();
  ReadOnlyMemory(const ReadOnlyMemory&) = delete;
  ReadOnlyMemory& operator=(const ReadOnlyMemory&) = delete;

  void set_read_only(bool on);

 private:
  struct Known;
  char* const begin_;
  const size_t nbytes_;
  Known& known_;
  bool on_ = false;
};

}  // namespace fsdp::comm
