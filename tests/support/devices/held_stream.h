// Streams of the simulated device that a test can hold up.
#pragma once

#include <torch/torch.h>

#include <chrono>
#include <future>
#include <thread>
#include <utility>

#include "base/device_stream.h"
#include "support/devices/simulated_device.h"

namespace fsdp::testing {

// A stream that does no work until it is released by let_go().
class HeldStream {
 public:
  HeldStream() : stream_(base::take_stream(simulated_device())), go_(gate_.get_future().share()) {
    testing::enqueue_on_simulated_stream(base::native_stream(stream_), [go = go_] { go.wait(); });
  }
  ~HeldStream() { let_go(); }
  void let_go() {
    if (std::exchange(held_, false)) gate_.set_value();
  }
  operator const c10::Stream&() const { return stream_; }

 private:
  c10::Stream stream_;
  std::promise<void> gate_;
  std::shared_future<void> go_;
  bool held_ = true;
};

// Returns a tensor on the device. The host waits until it is filled, so any stream may use it at once.
inline at::Tensor filled(int64_t numel, double value) {
  at::Tensor tensor = torch::full({numel}, value).to(simulated_device());
  base::current_stream(simulated_device()).synchronize();
  return tensor;
}
inline at::Tensor ones_on_device(int64_t numel) { return filled(numel, 1); }
inline at::Tensor zeros_on_device(int64_t numel) { return filled(numel, 0); }
inline double first_of(const at::Tensor& tensor) { return tensor.cpu()[0].item<double>(); }

// Whether the stream finishes its work (within 2 s) while another stream is held.
inline bool goes_on(const c10::Stream& stream) {
  base::DeviceEvent here;
  here.record(stream);
  for (int i = 0; i < 2000 && !here.reached(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return here.reached();
}

}  // namespace fsdp::testing
