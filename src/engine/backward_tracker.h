// Which backward passes run, where each begins and ends, and which were abandoned by an exception (rule R5).
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace fsdp {

// [Note: backward passes]
// The engine learns of a backward pass at its first touch or capture, and queues a callback for its end. A pass that
// runs inside another one on the same thread (reentrant checkpointing) is part of that outer pass: gradients are
// flushed at the end of the outermost only. If an inner pass is seen before its outer one, it counts as outermost:
// then the flush comes early, which costs a second reduction but no gradient. A pass that throws never calls its
// callback; autograd destroys the callback instead, and with it the token that it holds, which is how an abandoned pass
// is noticed at the next touch.
//
// [Note: a pass that fails in a device's thread]
// On a device with streams autograd runs a pass in a thread of the device's, while the one that called backward waits.
// When a node throws, the caller is woken first and the pass destroyed a moment later: whether the caller's next touch
// finds it abandoned would be chance, and ranks would differ in what they gather. Passes therefore know their caller:
// the thread that touched last outside of passes. It waits, at its next touch outside of passes, until they are over.
class BackwardTracker {
 public:
  struct Events {
    std::function<void()> opened;     // an outermost pass was seen for the first time
    std::function<void()> finished;   // the last outermost pass has ended
    std::function<void()> abandoned;  // a pass threw, and none is left
  };
  explicit BackwardTracker(Events events) : events_(std::move(events)) {}

  // Whether this thread runs another pass (or none) than was last seen: then observe() is due.
  bool changed() const;
  // Call at each touch and capture after which changed(). `owner` is kept alive until the end of the pass.
  void observe(const std::shared_ptr<void>& owner);
  // Whether the pass that this thread runs, which was observed, is no pass inside another one.
  bool is_outermost();

 private:
  // The callers of passes that are not over. Threads: safe.
  class Callers {
   public:
    void add(std::thread::id caller);
    void remove(std::thread::id caller);
    // Blocks until no pass of this caller's is left.
    void wait_for(std::thread::id caller);

   private:
    std::mutex mutex_;
    std::condition_variable removed_;
    std::vector<std::thread::id> callers_;
  };
  // Over when its pass has ended, or was destroyed. `callers` is null where the caller runs the pass itself.
  struct Token {
    Token(int id, std::thread::id caller, std::shared_ptr<Callers> callers);
    ~Token() { end(); }
    void end();

    const int id;
    const std::thread::id thread = std::this_thread::get_id();
    const std::thread::id caller;
    std::shared_ptr<Callers> callers;
  };
  bool forget_abandoned();
  void finish(const std::shared_ptr<Token>& token);

  Events events_;
  std::atomic<int> last_seen_{-1};
  mutable std::atomic<std::thread::id> last_outside_{};  // touched last outside of passes
  const std::shared_ptr<Callers> callers_ = std::make_shared<Callers>();
  std::recursive_mutex mutex_;
  std::vector<std::weak_ptr<Token>> open_;
};

}  // namespace fsdp
