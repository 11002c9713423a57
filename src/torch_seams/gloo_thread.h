// Runs functions on the thread that moves the bytes of a Gloo device.
#pragma once

#include <functional>
#include <memory>

namespace gloo::transport {
class Device;
}

namespace fsdp::seams {

// [Note: messages are posted on Gloo's thread]
// If the other side already waits for a message, Gloo writes it on the thread that posts it, under the lock of the
// connection. For megabytes this takes as many milliseconds. Meanwhile Gloo's own thread finds that it can read from
// the connection, fails to get the lock and retries at once: it spins on a processor that is needed for other work, in
// every collective in which both sides send. If messages are posted on Gloo's own thread, there is no competition for
// the lock, and the caller, which only hands the messages over, continues with its computation while the bytes are
// copied.
class GlooThread {
 public:
  // Throws if the Gloo of this LibTorch does not call back.
  explicit GlooThread(std::shared_ptr<::gloo::transport::Device> device);
  // Waits until all functions passed to run() before have run.
  ~GlooThread();
  GlooThread(const GlooThread&) = delete;
  GlooThread& operator=(const GlooThread&) = delete;

  // Runs `function` on Gloo's thread, in the order of the calls. May be called from any thread and does not block.
  // `function` must not throw.
  void run(std::function<void()> function);

 private:
  class Queue;
  std::shared_ptr<::gloo::transport::Device> device_;
  std::shared_ptr<Queue> queue_;
};

}  // namespace fsdp::seams
