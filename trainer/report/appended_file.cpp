#include "report/appended_file.h"

#include <c10/util/StringUtil.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "formats/common/file_system.h"
#include "fsdp/errors.h"

namespace fsdp::trainer {

AppendedFile::AppendedFile(std::string path, int descriptor, Say say)
    : AppendedFile(std::move(path), descriptor, std::move(say), Limits()) {}

AppendedFile::AppendedFile(std::string path, int descriptor, Say say, Limits limits)
    : path_(std::move(path)), descriptor_(descriptor), say_(std::move(say)), limits_(std::move(limits)) {}

AppendedFile::~AppendedFile() {
  say_ = [](const std::string&) {};
  write_kept();
  ::close(descriptor_);
}

void AppendedFile::append(std::string record) {
  kept_bytes_ += record.size();
  kept_.push_back(std::move(record));
  write_kept();
  while (kept_bytes_ > limits_.most_kept && kept_.size() > (oldest_is_begun_ ? 2 : 1)) drop_oldest();
}

void AppendedFile::cut(size_t bytes) {
  if (::ftruncate(descriptor_, static_cast<off_t>(bytes)) != 0) {
    throw FileError(path_ + ": cannot truncate the file: " + std::strerror(errno));
  }
  kept_.clear();
  kept_bytes_ = 0;
  oldest_is_begun_ = false;
}

std::string AppendedFile::finish() {
  write_kept();
  const int64_t missing = dropped_ + static_cast<int64_t>(kept_.size());
  if (missing == 0) return {};
  return c10::str(path_, ": ", missing, " line(s) of this run are missing from it",
                  error_ != 0 ? c10::str(": ", std::strerror(error_)) : std::string());
}

void AppendedFile::write_kept() {
  while (!kept_.empty()) {
    if (!write_oldest()) return note_failure(errno);
    kept_bytes_ -= kept_.front().size();
    kept_.pop_front();
    oldest_is_begun_ = false;
    ++written_late_;
  }
  note_success();
}

bool AppendedFile::write_oldest() {
  std::string& record = kept_.front();
  struct stat status{};
  if (::fstat(descriptor_, &status) != 0) return false;
  const off_t begin = status.st_size;
  for (size_t done = 0; done < record.size();) {
    const ssize_t written = formats::uninterrupted([&] {
      return limits_.write(descriptor_, record.data() + done, record.size() - done, begin + static_cast<off_t>(done));
    });
    if (written > 0) {
      done += static_cast<size_t>(written);
      continue;
    }
    const int error = written < 0 ? errno : EIO;
    if (done > 0 && ::ftruncate(descriptor_, begin) != 0) {  // then the rest must follow
      record.erase(0, done);
      kept_bytes_ -= done;
      oldest_is_begun_ = true;
    }
    errno = error;
    return false;
  }
  return true;
}

void AppendedFile::note_failure(int error) {
  if (std::exchange(error_, error) != 0) return;
  written_late_ = 0;
  say_(c10::str(path_, ": cannot write: ", std::strerror(error),
                "; training continues, and the lines are kept in memory until they can be written"));
}

void AppendedFile::note_success() {
  if (std::exchange(error_, 0) == 0) return;
  drops_ = false;
  say_(c10::str(path_, ": can be written again: ", written_late_, " line(s) kept in memory have been written"));
}

void AppendedFile::drop_oldest() {
  const auto oldest = kept_.begin() + (oldest_is_begun_ ? 1 : 0);
  kept_bytes_ -= oldest->size();
  kept_.erase(oldest);
  ++dropped_;
  if (std::exchange(drops_, true)) return;
  say_(c10::str(path_, ": the lines that wait to be written take more than ", limits_.most_kept,
                " bytes: the oldest are dropped"));
}

void say_on_stderr(const std::string& text) { std::fprintf(stderr, "%s\n", text.c_str()); }

}  // namespace fsdp::trainer
