// Tracks which backward passes run, where each begins and ends, and which were abandoned by an exception (rule R5).
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/mutex.h"

namespace fsdp::engine {

// [Note: backward passes]
// The engine learns of a backward pass at its first touch or capture, and then queues a callback for the end of the
// pass. A pass that runs inside another one on the same thread (reentrant checkpointing) is part of that outer pass:
// gradients are flushed only at the end of the outermost pass. If an inner pass is seen before its outer one, it counts
// as outermost. The flush then comes early, which costs a second reduction but loses no gradient. A pass that throws
// never calls its callback. Instead, autograd destroys the callback and the token that it holds, so the next touch
// finds the abandoned pass.
//
// [Note: a pass that fails in a device's thread]
// On a device with streams, autograd runs a pass in a thread of the device while the thread that called backward waits.
// If a node throws, autograd wakes the caller first and destroys the pass a moment later. Whether the caller's next
// touch finds the pass abandoned would then be chance, and ranks would differ in what they gather. Therefore each pass
// stores its caller: the thread that made the last touch outside of passes. At its next touch outside of passes, the
// caller waits until its passes are over.
class BackwardTracker {
 public:
  struct Events {
    std::function<void()> opened;     // an outermost pass was seen for the first time
    std::function<void()> finished;   // the last outermost pass has ended
    std::function<void()> abandoned;  // a pass threw, and no other pass is open
  };
  // The events are called without any lock, so they may lead to further touches.
  explicit BackwardTracker(Events events) : events_(std::move(events)) {}

  // Whether this thread runs a different pass (or none) than the last one seen, so that observe() must be called.
  bool changed() const;
  // Notes the pass that this thread runs. Must be called at each touch and capture if changed(). Keeps `owner` alive
  // until the end of the pass.
  void observe(const std::shared_ptr<void>& owner);
  // Whether the pass that this thread runs is not inside another one. The pass must have been observed.
  bool is_outermost();

 private:
  // The threads that called the passes which are not over yet. Threads: safe.
  class Callers {
   public:
    void add(std::thread::id caller);
    void remove(std::thread::id caller);
    // Blocks until all passes of this caller are over.
    void wait_for(std::thread::id caller);

   private:
    std::mutex mutex_;
    std::condition_variable removed_;
    std::vector<std::thread::id> callers_;
  };
  // A pass that is not over. It ends when the pass ends or is destroyed. `callers` is null if the caller runs the pass
  // itself.
  struct Token {
    Token(int id, std::thread::id caller, std::shared_ptr<Callers> callers);
    ~Token() { end(); }
    void end();

    const int id;
    const std::thread::id thread = std::this_thread::get_id();
    const std::thread::id caller;
    std::shared_ptr<Callers> callers;
  };
  // Opens the pass that this thread runs; null if it is open already, or runs inside one that is.
  std::shared_ptr<Token> open(int id) FSDP_EXCLUDES(mutex_);
  // Clears the list of abandoned passes. Returns whether there were any and no other pass is open.
  bool clear_abandoned() FSDP_EXCLUDES(mutex_);
  void finish(const std::shared_ptr<Token>& token) FSDP_EXCLUDES(mutex_);

  Events events_;
  std::atomic<int> last_seen_{-1};
  mutable std::atomic<std::thread::id> last_outside_{};  // the thread of the last touch outside of passes
  const std::shared_ptr<Callers> callers_ = std::make_shared<Callers>();
  base::Mutex mutex_;
  std::vector<std::weak_ptr<Token>> open_ FSDP_GUARDED_BY(mutex_);
};

}  // namespace fsdp::engine
