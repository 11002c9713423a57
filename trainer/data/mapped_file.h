// A file mapped into memory for reading.
#pragma once

#include <cstddef>
#include <string>

namespace fsdp::trainer {

class MappedFile {
 public:
  // Throws when the file is missing, no regular file, unreadable or empty, naming it.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const void* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  void* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace fsdp::trainer
