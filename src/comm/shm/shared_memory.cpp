#include "comm/shm/shared_memory.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <random>
#include <sstream>
#include <utility>

#include "base/sanitizers.h"
#if FSDP_THREAD_SANITIZER
#include <map>
#include <mutex>
#endif

namespace fsdp::comm {
namespace {

// The contents of the first page. It keeps a process from mistaking another file, whose descriptor has the same number,
// for this memory.
struct Mark {
  char what[16] = "fsdp.cpp shared";
  uint64_t word = 0;
};

uint64_t random_word() {
  std::random_device device;
  return (static_cast<uint64_t>(device()) << 32) | device();
}

Mark& mark_of(char* mapping) { return *reinterpret_cast<Mark*>(mapping); }

// Returns a hint for an error that a limit of the process may have caused; empty if there is no limit.
std::string limit_text(__rlimit_resource resource, const char* command, const char* things) {
  rlimit limit{};
  if (getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return {};
  return c10::str("; this process is limited to ", limit.rlim_cur, " bytes of ", things, ": raise that limit (",
                  command, ")");
}

std::string path_of(int64_t process, int file) { return c10::str("/proc/", process, "/fd/", file); }

#if FSDP_THREAD_SANITIZER

// The memory that this process has made, by ticket.
class Made {
 public:
  static Made& all() {
    static Made made;
    return made;
  }
  void add(const std::shared_ptr<SharedMemory>& memory) {
    std::lock_guard lock(mutex_);
    memories_[memory->ticket()] = memory;
  }
  std::shared_ptr<SharedMemory> find(const std::string& ticket) {
    std::lock_guard lock(mutex_);
    const auto found = memories_.find(ticket);
    return found == memories_.end() ? nullptr : found->second.lock();
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::weak_ptr<SharedMemory>> memories_;
};

void remember(const std::shared_ptr<SharedMemory>& memory) { Made::all().add(memory); }
std::shared_ptr<SharedMemory> made_here(const std::string& ticket) { return Made::all().find(ticket); }

#else

void remember(const std::shared_ptr<SharedMemory>&) {}
std::shared_ptr<SharedMemory> made_here(const std::string&) { return nullptr; }

#endif

}  // namespace

SharedMemory::SharedMemory(int file, int64_t nbytes, int64_t process)
    : file_(file),
      process_(process),
      nbytes_(nbytes),
      mapping_(static_cast<char*>(mmap(nullptr, static_cast<size_t>(kPage + nbytes), PROT_READ | PROT_WRITE,
                                       MAP_SHARED | MAP_NORESERVE, file, 0))) {
  const int error = errno;
  if (mapping_ == MAP_FAILED) {
    ::close(file);
    TORCH_CHECK(false, "no addresses for ", nbytes, " bytes of shared memory: ", std::strerror(error),
                limit_text(RLIMIT_AS, "ulimit -v", "address space"));
  }
}

SharedMemory::~SharedMemory() {
  munmap(mapping_, static_cast<size_t>(kPage + nbytes_));
  close();
}

int64_t SharedMemory::addresses_nbytes(int64_t nbytes) { return kPage + nbytes; }

void SharedMemory::move_to(char* addresses) {
  const auto nbytes = static_cast<size_t>(addresses_nbytes(nbytes_));
  void* moved = mremap(mapping_, nbytes, nbytes, MREMAP_MAYMOVE | MREMAP_FIXED, addresses);
  TORCH_CHECK(moved != MAP_FAILED, "shared memory of ", nbytes_, " bytes cannot be moved: ", std::strerror(errno));
  mapping_ = addresses;
}

void SharedMemory::close() {
  if (const int file = file_.exchange(-1); file >= 0) ::close(file);
}

std::shared_ptr<SharedMemory> SharedMemory::create(int64_t nbytes) {
  const int file = memfd_create("fsdp", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  TORCH_CHECK(file >= 0, "no shared memory: memfd_create: ", std::strerror(errno));
  // Seals the size: no process can shrink the file, so mapped pages remain valid.
  if (ftruncate(file, kPage + nbytes) != 0 ||
      fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    const int error = errno;
    ::close(file);
    TORCH_CHECK(false, "no shared memory of ", nbytes, " bytes: ", std::strerror(error),
                limit_text(RLIMIT_FSIZE, "ulimit -f", "file size"));
  }
  std::shared_ptr<SharedMemory> memory(new SharedMemory(file, nbytes, getpid()));
  memory->reserve(-kPage, kPage);
  mark_of(memory->mapping_) = Mark{.word = random_word()};
  remember(memory);
  return memory;
}

std::shared_ptr<SharedMemory> SharedMemory::open(const std::string& ticket) {
  int64_t process = 0, nbytes = 0;
  int number = 0;
  Mark mark;
  std::istringstream in(ticket);
  if (!(in >> process >> number >> nbytes >> mark.word)) return nullptr;
  const int file = ::open(path_of(process, number).c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) return nullptr;
  struct stat status{};
  if (fstat(file, &status) != 0 || !S_ISREG(status.st_mode) || status.st_size != kPage + nbytes) {
    ::close(file);
    return nullptr;
  }
  std::shared_ptr<SharedMemory> memory(new SharedMemory(file, nbytes, process));
  const Mark& found = mark_of(memory->mapping_);
  return std::memcmp(&found, &mark, sizeof(Mark)) == 0 ? memory : nullptr;
}

std::shared_ptr<SharedMemory> SharedMemory::open_to_stay(const std::string& ticket) {
  std::shared_ptr<SharedMemory> memory = made_here(ticket);
  return memory ? memory : open(ticket);
}

std::string SharedMemory::ticket() const {
  return c10::str(process_, " ", file_.load(), " ", nbytes_, " ", mark_of(mapping_).word);
}

char* SharedMemory::data() const { return mapping_ + kPage; }

bool SharedMemory::contains(const void* address) const {
  const auto* byte = static_cast<const char*>(address);
  return byte >= data() && byte < data() + nbytes_;
}

void SharedMemory::reserve(int64_t begin, int64_t nbytes) const {
  int result = 0;
  do {
    result = fallocate(file_, 0, kPage + begin, nbytes);
  } while (result != 0 && errno == EINTR);
  TORCH_CHECK(result == 0, "no memory for ", nbytes, " bytes that ranks of this host share: ", std::strerror(errno));
}

void SharedMemory::release(int64_t begin, int64_t nbytes) const {
  const int64_t first = (begin + kPage - 1) / kPage * kPage, last = (begin + nbytes) / kPage * kPage;
  if (first < last) madvise(data() + first, static_cast<size_t>(last - first), MADV_REMOVE);
}

}  // namespace fsdp::comm
