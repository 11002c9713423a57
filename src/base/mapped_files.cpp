#include "base/mapped_files.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/check.h"

namespace fsdp::base {
namespace {

size_t page_size() {
  static const auto size = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return size;
}

size_t whole_pages(size_t nbytes) { return (nbytes + page_size() - 1) / page_size() * page_size(); }

class OpenFile {
 public:
  explicit OpenFile(int descriptor) : descriptor_(descriptor) {}
  ~OpenFile() { close(descriptor_); }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  int descriptor() const { return descriptor_; }

 private:
  int descriptor_;
};

}  // namespace

std::shared_ptr<MappedFiles> MappedFiles::in(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  FSDP_CHECK_WITH(FileError, !error, "fsdp: offload_path: the folder '", folder,
                  "' cannot be created: ", error.message());
  static std::mutex mutex;
  static std::map<std::string, std::weak_ptr<MappedFiles>> known;
  std::lock_guard lock(mutex);
  std::weak_ptr<MappedFiles>& entry = known[std::filesystem::canonical(folder).string()];
  std::shared_ptr<MappedFiles> files = entry.lock();
  if (!files) {
    files.reset(new MappedFiles(folder));
    OpenFile probe(files->open_file());
    entry = files;
  }
  return files;
}

MappedFiles::~MappedFiles() { trim(); }

// Opens a file without a name, or one whose name is removed at once if the file system does not support unnamed files.
int MappedFiles::open_file() const {
  int file = open(folder_.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (file < 0 && (errno == EOPNOTSUPP || errno == EISDIR)) {
    std::string name = folder_ + "/fsdp-offload-XXXXXX";
    file = mkostemp(name.data(), O_CLOEXEC);
    if (file >= 0) unlink(name.c_str());
  }
  FSDP_CHECK_WITH(FileError, file >= 0, "fsdp: offload_path: no file can be created in the folder '", folder_,
                  "': ", std::strerror(errno));
  return file;
}

void* MappedFiles::map(size_t nbytes) const {
  OpenFile file(open_file());
  int error = posix_fallocate(file.descriptor(), 0, static_cast<off_t>(nbytes));
  TORCH_CHECK_WITH(OutOfMemoryError, error == 0, "fsdp: offload_path: cannot allocate ", nbytes,
                   " bytes in the folder '", folder_, "': ", std::strerror(error));
  void* memory = mmap(nullptr, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.descriptor(), 0);
  TORCH_CHECK_WITH(OutOfMemoryError, memory != MAP_FAILED, "fsdp: offload_path: cannot map ", nbytes,
                   " bytes of a file in '", folder_, "': ", std::strerror(errno));
  return memory;
}

c10::DataPtr MappedFiles::allocate(size_t nbytes) {
  const size_t size = whole_pages(std::max<size_t>(nbytes, 1));
  MutexLock lock(mutex_);
  void* memory = nullptr;
  if (auto spare = spare_.find(size); spare != spare_.end()) {
    memory = spare->second;
    spare_.erase(spare);
  } else {
    memory = map(size);
  }
  in_use_.emplace(memory, size);
  return {memory, new Mapping{shared_from_this(), memory}, &delete_mapping, c10::Device(c10::kCPU)};
}

void MappedFiles::delete_mapping(void* context) {
  std::unique_ptr<Mapping> mapping(static_cast<Mapping*>(context));
  mapping->files->release(mapping->memory);
}

void MappedFiles::release(void* memory) {
  MutexLock lock(mutex_);
  auto it = in_use_.find(memory);
  spare_.emplace(it->second, memory);
  in_use_.erase(it);
}

bool MappedFiles::contains(const void* address) const {
  MutexLock lock(mutex_);
  auto after = in_use_.upper_bound(const_cast<void*>(address));
  if (after == in_use_.begin()) return false;
  const auto& [begin, nbytes] = *std::prev(after);
  return address < static_cast<const char*>(begin) + nbytes;
}

// The kernel drops the pages of a shared file mapping, but the file keeps their contents.
void MappedFiles::page_out() {
  MutexLock lock(mutex_);
  for (const auto& [memory, nbytes] : in_use_) madvise(memory, nbytes, MADV_DONTNEED);
}

void MappedFiles::page_out(const void* begin, size_t nbytes) {
  const auto first = reinterpret_cast<uintptr_t>(begin) / page_size() * page_size();
  const size_t size = whole_pages(reinterpret_cast<uintptr_t>(begin) + nbytes - first);
  if (contains(begin)) madvise(reinterpret_cast<void*>(first), size, MADV_DONTNEED);
}

void MappedFiles::trim() {
  MutexLock lock(mutex_);
  for (const auto& [nbytes, memory] : spare_) munmap(memory, nbytes);
  spare_.clear();
}

int64_t MappedFiles::nbytes() const {
  MutexLock lock(mutex_);
  int64_t sum = 0;
  for (const auto& [memory, nbytes] : in_use_) sum += static_cast<int64_t>(nbytes);
  return sum;
}

}  // namespace fsdp::base
