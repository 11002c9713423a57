// Memory without a name that the processes of one host share.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace fsdp {

// A range of addresses over a file that has no name (memfd_create). Its pages come when they are first written or
// reserved, and go with the last process that maps them, however that process ends. Other processes of the same user
// map it by a ticket, as long as the object that gave it lives; nobody else can.
//
// Threads: safe.
class SharedMemory {
 public:
  // `nbytes` of addresses, which take no memory yet and read as zeros. Throws where the system has none.
  static std::shared_ptr<SharedMemory> create(int64_t nbytes);
  // The memory that a ticket stands for, of another process or of this one; null where this process cannot reach it:
  // from another host, container (of which process ids mean something else) or user.
  static std::shared_ptr<SharedMemory> open(const std::string& ticket);
  // open(), of memory that nobody moves. Under ThreadSanitizer, to which memory is its addresses, threads of one
  // process get one object.
  static std::shared_ptr<SharedMemory> open_to_stay(const std::string& ticket);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  std::string ticket() const;
  // The process that has made it.
  int64_t process() const { return process_; }
  // Moves it, with what it holds, to these addresses, in the place of what is mapped there: a page, and behind it the
  // memory. In this process alone.
  void move_to(char* addresses);
  static int64_t addresses_nbytes(int64_t nbytes);
  static constexpr int64_t kPage = 4096;  // bytes of the page
  // Nobody can open it any more, and reserve() cannot be called; it keeps no file descriptor.
  void close();
  char* data() const;
  int64_t nbytes() const { return nbytes_; }
  bool contains(const void* address) const;

  // Provides the pages of a range, so that writing there cannot fail later (SIGBUS). Throws where there is not enough
  // memory, with the figure.
  void reserve(int64_t begin, int64_t nbytes) const;
  // Gives back the pages that lie in the range whole; they read as zeros again, in all processes.
  void release(int64_t begin, int64_t nbytes) const;

 private:
  SharedMemory(int file, int64_t nbytes, int64_t process);

  std::atomic<int> file_;
  const int64_t process_;
  const int64_t nbytes_;
  char* mapping_;  // a page that holds what tells this memory from any other, and then the memory
};

// SharedMemory::open, or open_to_stay, or what a test has in their place.
using OpenMemory = std::function<std::shared_ptr<SharedMemory>(const std::string& ticket)>;

}  // namespace fsdp
