#include "support/ranks/event_loop_ticks.h"

#include <sys/epoll.h>

#include <algorithm>
#include <atomic>

namespace {

std::atomic<int> longest_tick{-1};  // milliseconds; if negative, timeouts stay as requested

}  // namespace

// Replaces the C library's function for all libraries in the program, because the program's own definition takes
// precedence.
extern "C" int epoll_wait(int epoll, epoll_event* events, int count, int timeout) {
  const int longest = longest_tick.load(std::memory_order_relaxed);
  const bool shorten = longest >= 0 && timeout > 0;
  return epoll_pwait(epoll, events, count, shorten ? std::min(timeout, longest) : timeout, nullptr);
}

namespace fsdp::testing {

void shorten_event_loop_ticks(std::chrono::milliseconds tick) { longest_tick = static_cast<int>(tick.count()); }

}  // namespace fsdp::testing
