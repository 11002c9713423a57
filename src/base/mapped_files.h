// Memory that lies in files: what the system may keep on a disk, rather than in memory.
#pragma once

#include <c10/core/Allocator.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

namespace fsdp {

// Hands out memory that is mapped from files of one folder. The files have no names: nothing stays behind when the
// process ends, however it ends. Their space is reserved when memory is handed out, so that a full disk is an error
// then, and not a signal at some later write. Threads: safe.
class MappedFiles : public std::enable_shared_from_this<MappedFiles> {
 public:
  // One object for each folder at a time. Makes the folder where it is missing. Throws when no file can be made there,
  // naming the folder and the reason.
  static std::shared_ptr<MappedFiles> in(const std::string& folder);
  ~MappedFiles();

  // `nbytes` of memory, contents undefined; keeps this alive. Throws OutOfMemoryError when the disk has no space.
  c10::DataPtr allocate(size_t nbytes);

  // Whether the address lies in memory that was handed out.
  bool contains(const void* address) const;
  // Takes what has been touched out of the process's resident memory, all or the pages of one piece; it stays in the
  // files, and comes back at the next touch.
  void page_out();
  void page_out(const void* begin, size_t nbytes);
  // Gives memory back to the disk that was handed out, given back, and is kept for the next time.
  void trim();

  const std::string& folder() const { return folder_; }
  // Bytes in use.
  int64_t nbytes() const;

 private:
  explicit MappedFiles(std::string folder) : folder_(std::move(folder)) {}
  void* map(size_t nbytes) const;
  int open_file() const;
  void give_back(void* memory);
  static void delete_mapping(void* context);

  struct Mapping {
    std::shared_ptr<MappedFiles> files;
    void* memory;
  };
  std::string folder_;
  mutable std::mutex mutex_;
  std::map<void*, size_t> in_use_;      // sizes in whole pages
  std::multimap<size_t, void*> spare_;  // by size
};

}  // namespace fsdp
