#include "base/interruption.h"

#include <algorithm>
#include <atomic>
#include <thread>

#include "fsdp/interruption.h"

namespace fsdp::base {
namespace {

// Constant-initialized, so a signal handler may use it at any time.
std::atomic<bool> interruption_requested{false};
static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler must not take a lock");

}  // namespace

void Interruption::request() noexcept { interruption_requested.store(true, std::memory_order_relaxed); }
void Interruption::clear() noexcept { interruption_requested.store(false, std::memory_order_relaxed); }
bool Interruption::is_requested() noexcept { return interruption_requested.load(std::memory_order_relaxed); }

bool Interruption::sleep_for(std::chrono::milliseconds time) {
  const auto end = std::chrono::steady_clock::now() + time;
  while (!is_requested()) {
    const auto left = end - std::chrono::steady_clock::now();
    if (left <= left.zero()) return true;
    std::this_thread::sleep_for(std::min<std::chrono::steady_clock::duration>(left, kPeriod));
  }
  return false;
}

}  // namespace fsdp::base

namespace fsdp {

void interrupt_waits() noexcept { base::Interruption::request(); }
void allow_waits() noexcept { base::Interruption::clear(); }
bool waits_are_interrupted() noexcept { return base::Interruption::is_requested(); }

}  // namespace fsdp
