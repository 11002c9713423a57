#include "comm/shm/read_only_memory.h"

#include <c10/util/Exception.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <mutex>

namespace fsdp::comm {

// The entries that the signal handler reads, at any moment: they are reused, never freed. A free entry contains no
// address.
struct ReadOnlyMemory::Known {
  std::atomic<const char*> begin{nullptr};
  std::atomic<const char*> end{nullptr};
  char text[256] = {};
  Known* next = nullptr;

  static std::atomic<Known*> all;
  static Known& take(const std::string& text);
  static const Known* of(const void* address);
  static void say_and_end(int signal, siginfo_t* info, void*);
};

std::atomic<ReadOnlyMemory::Known*> ReadOnlyMemory::Known::all{nullptr};

namespace {

std::mutex known_mutex;
struct sigaction handler_before;

}  // namespace

const ReadOnlyMemory::Known* ReadOnlyMemory::Known::of(const void* address) {
  for (const Known* known = all; known != nullptr; known = known->next) {
    if (address >= known->begin && address < known->end) return known;
  }
  return nullptr;
}

// After this handler returns, the write is repeated without it.
void ReadOnlyMemory::Known::say_and_end(int signal, siginfo_t* info, void*) {
  if (const Known* known = of(info->si_addr)) {
    [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, known->text, std::strlen(known->text));
  }
  sigaction(signal, &handler_before, nullptr);
}

ReadOnlyMemory::Known& ReadOnlyMemory::Known::take(const std::string& text) {
  std::lock_guard lock(known_mutex);
  if (all == nullptr) {
    struct sigaction handler{};
    handler.sa_sigaction = &Known::say_and_end;
    handler.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(SIGSEGV, &handler, &handler_before);
  }
  Known* known = all;
  while (known != nullptr && known->text[0] != '\0') known = known->next;
  if (known == nullptr) {
    known = new Known;
    known->next = all;
    all = known;
  }
  const size_t length = std::min(text.size(), sizeof(known->text) - 2);
  std::memcpy(known->text, text.data(), length);
  std::memcpy(known->text + length, "\n", 2);
  return *known;
}

ReadOnlyMemory::ReadOnlyMemory(char* begin, size_t nbytes, const std::string& text)
    : begin_(begin), nbytes_(nbytes), known_(Known::take(text)) {}

ReadOnlyMemory::~ReadOnlyMemory() {
  set_read_only(false);
  std::lock_guard lock(known_mutex);
  known_.text[0] = '\0';
}

void ReadOnlyMemory::set_read_only(bool on) {
  if (on == on_) return;
  known_.end = on ? begin_ + nbytes_ : nullptr;
  known_.begin = on ? begin_ : nullptr;
  const int result = mprotect(begin_, nbytes_, on ? PROT_READ : PROT_READ | PROT_WRITE);
  TORCH_CHECK(result == 0, "memory of ", nbytes_, " bytes cannot be made ", on ? "read-only" : "writable", ": ",
              std::strerror(errno));
  on_ = on;
}

}  // namespace fsdp::comm
