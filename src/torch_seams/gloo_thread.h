// Work on the thread that moves the bytes of a Gloo device.
#pragma once

#include <functional>
#include <memory>

namespace gloo::transport {
class Device;
}

namespace fsdp::seams {

// [Note: messages are posted on Gloo's thread]
// Gloo writes a message that the other side waits for on the thread that posts it, under the lock of the connection,
// which for megabytes takes as many milliseconds. Meanwhile its own thread finds that it can read from the connection,
// fails to get the lock, and asks again at once: it spins, on a processor that has something better to do, and that in
// every collective in which both sides send. On Gloo's own thread nobody competes for the lock, and the caller, which
// only hands over what is to be posted, goes on with its computation while the bytes are copied.
class GlooThread {
 public:
  // Throws if this LibTorch's Gloo does not call back.
  explicit GlooThread(std::shared_ptr<::gloo::transport::Device> device);
  // Behind what was handed over before.
  ~GlooThread();
  GlooThread(const GlooThread&) = delete;
  GlooThread& operator=(const GlooThread&) = delete;

  // From any thread, without blocking; in the order of the calls. `function` must not throw.
  void run(std::function<void()> function);

 private:
  class Queue;
  std::shared_ptr<::gloo::transport::Device> device_;
  std::shared_ptr<Queue> queue_;
};

}  // namespace fsdp::seams
