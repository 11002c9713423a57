// Gloo's event loops in a test program: how long each sleeps when nothing happens.
#pragma once

#include <chrono>

namespace fsdp::testing {

// From now on epoll_wait in this program returns after `tick` at the latest. Gloo asks for 10 ms, and whoever closes a
// connection waits until the loop comes round: 8 ranks with three groups spend 0.2 s of each test so. No loop can tell:
// returning without an event is what a signal does, too.
void shorten_event_loop_ticks(std::chrono::milliseconds tick);

}  // namespace fsdp::testing
