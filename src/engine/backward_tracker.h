// Which backward passes run, where each begins and ends, and which were abandoned by an exception (rule R5).
#pragma once

#include <atomic>
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

 private:
  struct Token {
    int id;
    std::thread::id thread;
  };
  bool forget_abandoned();
  void finish(const std::shared_ptr<Token>& token);

  Events events_;
  std::atomic<int> last_seen_{-1};
  std::recursive_mutex mutex_;
  std::vector<std::weak_ptr<Token>> open_;
};

}  // namespace fsdp
