// Unnamed memory that the processes of one host share.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace fsdp::comm {

// A range of addresses over a file that has no name (memfd_create). Its pages are allocated when they are first written
// or reserved, and freed with the last process that maps them, however that process ends. Other processes of the same
// user map it by a ticket, as long as the object that issued the ticket lives; no other process can.
class SharedMemory {
 public:
  // Creates `nbytes` of address space, which takes no memory yet and reads as zeros. Throws if the system has none.
  static std::shared_ptr<SharedMemory> create(int64_t nbytes);
  // Opens the memory that a ticket stands for, made by another process or by this one. Returns null if this process
  // cannot reach it: on another host, in another container (where process ids mean something else) or as another user.
  static std::shared_ptr<SharedMemory> open(const std::string& ticket);
  // Like open(), for memory that is never moved. Under ThreadSanitizer, which identifies memory by its addresses,
  // threads of one process get one object.
  static std::shared_ptr<SharedMemory> open_to_stay(const std::string& ticket);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  std::string ticket() const;
  // The id of the process that created the memory.
  int64_t process() const { return process_; }
  // Moves the mapping, with its contents, to these addresses, replacing what is mapped there: a page, followed by the
  // memory. Affects this process only.
  void move_to(char* addresses);
  static int64_t addresses_nbytes(int64_t nbytes);
  static constexpr int64_t kPage = 4096;  // bytes of the page
  // Closes the file descriptor: no process can open the memory any more, and reserve() must not be called.
  void close();
  char* data() const;
  int64_t nbytes() const { return nbytes_; }
  bool contains(const void* address) const;

  // Allocates the pages of a range, so that writing there cannot fail later (SIGBUS). Throws, with the figure, if there
  // is too little memory.
  void reserve(int64_t begin, int64_t nbytes) const;
  // Releases the pages that lie entirely in the range; they read as zeros again, in all processes.
  void release(int64_t begin, int64_t nbytes) const;

 private:
  SharedMemory(int file, int64_t nbytes, int64_t process);

  std::atomic<int> file_;
  const int64_t process_;
  const int64_t nbytes_;
  char* mapping_;  // a page that identifies this memory, followed by the memory
};

// SharedMemory::open, open_to_stay, or a replacement in tests.
using OpenMemory = std::function<std::shared_ptr<SharedMemory>(const std::string& ticket)>;

}  // namespace fsdp::comm
