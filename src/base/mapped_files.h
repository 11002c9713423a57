// Memory that is mapped from files, so that the system may keep it on a disk instead of in memory.
#pragma once

#include <c10/core/Allocator.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "base/mutex.h"

namespace fsdp::base {

// Allocates memory that is mapped from files in one folder. The files have no names, so nothing is left over when the
// process ends, however it ends. Their space is reserved at allocation, so that a full disk causes an error at that
// point and not a signal at a later write. Thread-safe.
class MappedFiles : public std::enable_shared_from_this<MappedFiles> {
 public:
  // Returns the object for a folder; there is one for each folder at a time. Creates the folder if it is missing.
  // Throws if no file can be created there, naming the folder and the reason.
  static std::shared_ptr<MappedFiles> in(const std::string& folder);
  ~MappedFiles();

  // Returns `nbytes` of memory with undefined contents; the memory keeps this object alive. Throws OutOfMemoryError if
  // the disk has no space.
  c10::DataPtr allocate(size_t nbytes);

  // Whether the address lies in memory that was allocated here and is in use.
  bool contains(const void* address) const;
  // Removes touched pages from the process's resident memory, either all of them or those of one piece. The contents
  // stay in the files and are loaded again at the next access.
  void page_out();
  void page_out(const void* begin, size_t nbytes);
  // Returns memory to the disk that was allocated, released and kept for reuse.
  void trim();

  const std::string& folder() const { return folder_; }
  // Bytes in use.
  int64_t nbytes() const;

 private:
  explicit MappedFiles(std::string folder) : folder_(std::move(folder)) {}
  void* map(size_t nbytes) const;
  int open_file() const;
  void release(void* memory);
  static void delete_mapping(void* context);

  struct Mapping {
    std::shared_ptr<MappedFiles> files;
    void* memory;
  };
  std::string folder_;
  mutable Mutex mutex_;
  std::map<void*, size_t> in_use_ FSDP_GUARDED_BY(mutex_);      // sizes in whole pages
  std::multimap<size_t, void*> spare_ FSDP_GUARDED_BY(mutex_);  // by size
};

}  // namespace fsdp::base
