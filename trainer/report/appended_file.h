// A file that grows record by record during a run, and whose errors never end the run.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>

namespace fsdp::trainer {

// Passes each record to the operating system at once. A record that the system does not accept, because the disk is
// full for example, is kept in memory and written before the next one, so that the file contains only complete records,
// in order, each once.
class AppendedFile {
 public:
  using Say = std::function<void(const std::string& text)>;
  // Writes like pwrite; tests pass their own function.
  using Write = std::function<ssize_t(int file, const void* data, size_t size, off_t offset)>;
  struct Limits {
    size_t most_kept = size_t{16} << 20;  // bytes of records; beyond them the oldest are dropped
    Write write = ::pwrite;
  };

  // Takes ownership of `descriptor`, which must be open for writing. `path`: for messages. `say`: called once when
  // writing begins to fail, when records begin to be dropped, and when writing works again.
  AppendedFile(std::string path, int descriptor, Say say);
  AppendedFile(std::string path, int descriptor, Say say, Limits limits);
  // Tries once more to write the kept records. Closes the descriptor.
  ~AppendedFile();
  AppendedFile(const AppendedFile&) = delete;
  AppendedFile& operator=(const AppendedFile&) = delete;

  void append(std::string record);
  // Drops the kept records and truncates the file to its first `bytes` bytes. Throws an error if that fails.
  void cut(size_t bytes);
  // Tries once more to write the kept records. Returns how many records the file lacks, and why, or an empty string if
  // it lacks none.
  std::string finish();

  int descriptor() const { return descriptor_; }
  const std::string& path() const { return path_; }

 private:
  void write_kept();
  // Writes the oldest record. Returns whether it is now in the file.
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
  bool oldest_is_begun_ = false;  // the file contains its beginning, which could not be removed
  int64_t written_late_ = 0;      // since writing began to fail
  int64_t dropped_ = 0;           // of the whole run
  bool drops_ = false;            // since writing began to fail
  int error_ = 0;                 // of the latest failure; 0: writing works
};

// Prints the messages of AppendedFile on stderr.
void say_on_stderr(const std::string& text);

}  // namespace fsdp::trainer
