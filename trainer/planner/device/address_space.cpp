#include "planner/device/address_space.h"

#include <c10/util/Exception.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstring>

namespace fsdp::planner {
namespace {

constexpr uint64_t kMost = uint64_t{64} << 40;
constexpr uint64_t kLeast = uint64_t{64} << 30;

std::atomic<const AddressSpace*> reserved{nullptr};
std::atomic<const char*> last_operator{"(none)"};
struct sigaction previous;

void say(const char* text) {
  if (write(STDERR_FILENO, text, std::strlen(text)) < 0) return;
}

// Only calls what a signal handler may call.
void on_fault(int signal, siginfo_t* info, void* context) {
  const AddressSpace* space = reserved;
  if (space != nullptr && space->contains(info->si_addr)) {
    say("fsdp plan: code reads or writes a tensor's memory, which has only an address in a plan; the last operator "
        "was ");
    say(last_operator);
    say("\n");
    _exit(1);
  }
  if (previous.sa_flags & SA_SIGINFO) {
    previous.sa_sigaction(signal, info, context);
    return;
  }
  sigaction(signal, &previous, nullptr);  // the fault repeats and has its usual effect
}

void handle_faults() {
  struct sigaction action{};
  action.sa_sigaction = &on_fault;
  action.sa_flags = SA_SIGINFO;
  sigemptyset(&action.sa_mask);
  TORCH_CHECK(sigaction(SIGSEGV, &action, &previous) == 0, "fsdp plan: cannot handle SIGSEGV");
}

}  // namespace

AddressSpace::AddressSpace() {
  for (uint64_t wanted = kMost; wanted >= kLeast; wanted /= 2) {
    void* memory = mmap(nullptr, wanted, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) continue;
    begin_ = reinterpret_cast<uint64_t>(memory);
    nbytes_ = wanted;
    break;
  }
  TORCH_CHECK(nbytes_ > 0, "fsdp plan: this process may not reserve ", kLeast >> 30,
              " GiB of addresses (no memory); a limit such as `ulimit -v` is in the way");
  reserved = this;
  handle_faults();
}

AddressSpace::~AddressSpace() {
  sigaction(SIGSEGV, &previous, nullptr);
  reserved = nullptr;
  munmap(reinterpret_cast<void*>(begin_), nbytes_);
}

void note_last_operator(const char* name) { last_operator = name; }

}  // namespace fsdp::planner
