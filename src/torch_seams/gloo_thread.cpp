#include "torch_seams/gloo_thread.h"

#include <c10/util/Exception.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/tcp/loop.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <future>
#include <mutex>
#include <utility>
#include <vector>

namespace fsdp::seams {
namespace {

using gloo::transport::tcp::Device;
using gloo::transport::tcp::Handler;

constexpr auto kCheckLimit = std::chrono::seconds(30);

}  // namespace

// The arguments of Gloo's handlers have changed over time; this handler does not read them.
class GlooThread::Queue final : public Handler {
 public:
  explicit Queue(Device& device) : device_(device), event_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
    TORCH_CHECK(event_ >= 0, "fsdp: cannot create an eventfd for a group of ranks: ", std::strerror(errno));
    device_.registerDescriptor(event_, EPOLLIN, this);
  }
  ~Queue() override { close(event_); }

  void add(std::function<void()> function) {
    std::lock_guard<std::mutex> lock(mutex_);
    functions_.push_back(std::move(function));
    if (functions_.size() == 1) eventfd_write(event_, 1);
  }

  void unregister() { device_.unregisterDescriptor(event_, this); }

  void handleEvents(int) override {
    eventfd_t count = 0;
    eventfd_read(event_, &count);
    std::vector<std::function<void()>> functions;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      functions.swap(functions_);
    }
    for (const auto& function : functions) function();
  }

 private:
  Device& device_;
  const int event_;
  std::mutex mutex_;
  std::vector<std::function<void()>> functions_;
};

GlooThread::GlooThread(std::shared_ptr<::gloo::transport::Device> device) : device_(std::move(device)) {
  auto* tcp = dynamic_cast<Device*>(device_.get());
  TORCH_CHECK(tcp != nullptr, "fsdp: this LibTorch's Gloo made a device that is not of its TCP transport");
  queue_ = std::make_shared<Queue>(*tcp);
  auto called = std::make_shared<std::promise<void>>();
  run([called] { called->set_value(); });
  if (called->get_future().wait_for(kCheckLimit) != std::future_status::ready) {
    queue_->unregister();
    TORCH_CHECK(false, "fsdp: this LibTorch's Gloo does not call back on its thread");
  }
}

GlooThread::~GlooThread() {
  // Runs on Gloo's own thread: otherwise unregistering would have to wait until that thread polls the next time.
  auto gone = std::make_shared<std::promise<void>>();
  queue_->add([queue = queue_, gone] {
    queue->unregister();
    gone->set_value();
  });
  gone->get_future().wait();
}

void GlooThread::run(std::function<void()> function) { queue_->add(std::move(function)); }

}  // namespace fsdp::seams
