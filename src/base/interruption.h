// The request that threads of this process stop waiting for others. fsdp/interruption.h is its public face.
#pragma once

#include <chrono>

namespace fsdp::base {

// A flag of the whole process. It stays set until it is cleared, so a wait that begins after the request ends as well.
// Threads: safe.
class Interruption {
 public:
  // The longest time that a wait sleeps before it looks at the flag.
  static constexpr std::chrono::milliseconds kPeriod{50};

  // May be called from a signal handler.
  static void request() noexcept;
  static void clear() noexcept;
  static bool is_requested() noexcept;
  // Sleeps. Returns false early if the flag is or gets set.
  static bool sleep_for(std::chrono::milliseconds time);
};

}  // namespace fsdp::base
