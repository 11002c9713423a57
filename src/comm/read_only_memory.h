// Memory that this process must not write to for a while, and what it says when it does.
#pragma once

#include <cstddef>
#include <string>

namespace fsdp {

// A range of whole pages. A write to it while it is read-only ends the process by SIGSEGV, as it would otherwise,
// behind a line on stderr; a handler that was there before the first one of these was made runs then.
//
// Threads: one at a time for each object.
class ReadOnlyMemory {
 public:
  // `text`: what the line says.
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

}  // namespace fsdp
