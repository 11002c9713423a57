// A file that grows record by record while a run lasts, and never ends the run.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>

namespace fsdp::trainer {

// Hands each record to the operating system at once. A record that the system does not take, as the disk is full, is
// kept in memory and written before the next one, so that the file holds whole records only, in order, each once.
class AppendedFile {
 public:
  using Say = std::function<void(const std::string& text)>;
  // pwrite, or a test's own.
  using Write = std::function<ssize_t(int file, const void* data, size_t size, off_t offset)>;
  struct Limits {
    size_t most_kept = size_t{16} << 20;  // bytes of records; beyond them the oldest are dropped
    Write write = ::pwrite;
  };

  // Takes over `descriptor`, open for writing. `path`: for messages. `say`: told once when writing begins to fail, when
  // records begin to be dropped, and when writing works again.
  AppendedFile(std::string path, int descriptor, Say say);
  AppendedFile(std::string path, int descriptor, Say say, Limits limits);
  // Tries once more to write the records that are kept.
  ~AppendedFile();
  AppendedFile(const AppendedFile&) = delete;
  AppendedFile& operator=(const AppendedFile&) = delete;

  void append(std::string record);
  // Forgets the records that are kept and leaves the file's first `bytes`. An error when that fails.
  void cut(size_t bytes);
  // Tries once more to write the records that are kept. Says how many records the file lacks, and why; empty: none.
  std::string finish();

  int descriptor() const { return descriptor_; }
  const std::string& path() const { return path_; }

 private:
  void write_kept();
  // Whether the oldest record is in the file now.
  bool write_oldest();
  void note_failure(int error);
  void note_success();
  void drop_oldest();

  std::string path_;
  int descriptor_;
  Say say_;
  Limits limits_;
  std::deque<std::string> kept_;  // not in the file yet
  size_t kept_bytes_ = 0;
  bool oldest_is_begun_ = false;  // the file holds its beginning, which could not be taken back
  int64_t written_late_ = 0;      // since writing began to fail
  int64_t dropped_ = 0;           // of the whole run
  bool drops_ = false;            // since writing began to fail
  int error_ = 0;                 // of the latest failure; 0: writing works
};

// Prints the messages of AppendedFile on stderr.
void say_on_stderr(const std::string& text);

}  // namespace fsdp::trainer
