// Tests that work on streams of the simulated device runs late, and is ordered only by streams and events.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/device_stream.h"
#include "support/devices/simulated_device.h"
#include "support/faults/error_of.h"
#include "support/nets/tiny_lm.h"

namespace fsdp {
namespace {

using testing::error_of;
using ::testing::HasSubstr;
using testing::simulated_device;

// Holds a stream up until the gate is opened. A host that waits for the stream before that would wait forever, so the
// stream continues after 20 s, and the test fails.
class Gate {
 public:
  explicit Gate(const c10::Stream& stream) {
    testing::enqueue_on_simulated_stream(base::native_stream(stream), [this] {
      forced_ = opened_.get_future().wait_for(std::chrono::seconds(20)) != std::future_status::ready;
      passed_.set_value();
    });
  }
  ~Gate() { open(); }
  void open() {
    if (std::exchange(is_open_, true)) return;
    opened_.set_value();
    passed_.get_future().wait();
    EXPECT_FALSE(forced_) << "the host waited for a stream that was held up";
  }

 private:
  std::promise<void> opened_;
  std::promise<void> passed_;
  bool forced_ = false;
  bool is_open_ = false;
};

at::TensorOptions on_device() { return at::TensorOptions().device(simulated_device()); }

// Each test has its own stream, which is current in its thread.
class SimulatedStreams : public ::testing::Test {
 protected:
  const c10::Device device = simulated_device();
  const c10::Stream stream = base::take_stream(device);
  const c10::Stream other = base::take_stream(device);
  const base::CurrentStreamGuard current{stream};
};

TEST_F(SimulatedStreams, TheHostRunsAheadOfAWholeTrainingStep) {
  const auto train = [](testing::TinyLM& model, const at::Tensor& batch, const std::function<void()>& before_weights) {
    torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(0.01));
    model->loss(batch).backward();
    optimizer.step();
    before_weights();
    std::vector<at::Tensor> weights;
    for (const auto& p : model->parameters()) weights.push_back(p.detach().cpu());
    return weights;
  };
  auto plain = testing::make_tiny_lm({});
  auto model = testing::make_tiny_lm({});
  const auto want = train(plain, testing::batch_of(0, 0), [] {});
  model->to(device);
  const auto batch = testing::batch_of(0, 0).to(device);
  Gate gate(stream);
  const auto got = train(model, batch, [&] { gate.open(); });
  for (size_t i = 0; i < want.size(); ++i) EXPECT_TRUE(torch::equal(got[i], want[i])) << i;
}

TEST_F(SimulatedStreams, OperatorsReturnBeforeTheyAreDone) {
  const std::vector<std::pair<std::string, std::function<at::Tensor(const at::Tensor&)>>> operators = {
      {"add", [](const at::Tensor& x) { return x + 1; }},
      {"layer_norm", [](const at::Tensor& x) { return at::layer_norm(x, {6}); }},
      {"softmax", [](const at::Tensor& x) { return x.softmax(0); }},
      {"attention", [](const at::Tensor& x) { return at::scaled_dot_product_attention(x, x, x); }},
      {"convolution", [](const at::Tensor& x) { return at::conv1d(x, x.narrow(2, 0, 3)); }},
      {"index", [](const at::Tensor& x) { return x.index({torch::arange(2).to(x.device(), false)}); }},
      {"in place", [](const at::Tensor& x) { return x.clone().mul_(2).narrow(0, 0, 1).zero_(); }},
      {"out", [](const at::Tensor& x) {
         auto out = at::empty({0}, x.options());
         return at::mul_out(out, x, x);
       }}};
  const auto host = torch::arange(3 * 4 * 6, at::kFloat).view({3, 4, 6}) / 7;
  const auto x = host.narrow(1, 0, 3).to(device);
  for (const auto& [name, run] : operators) {
    Gate gate(stream);
    const at::Tensor result = run(x);
    base::DeviceEvent done;
    done.record_current(device);
    EXPECT_FALSE(done.reached()) << name;
    gate.open();
    EXPECT_TRUE(torch::equal(result.cpu(), run(host.narrow(1, 0, 3)))) << name;
    EXPECT_TRUE(done.reached()) << name;
  }
}

TEST_F(SimulatedStreams, AReaderThatDoesNotWaitSeesOldValues) {
  const auto data = torch::ones({100}, on_device());
  auto early = torch::empty({100}, on_device());
  auto late = torch::empty({100}, on_device());
  base::DeviceEvent ready;
  ready.record_current(device);
  ready.block(other);
  Gate gate(stream);
  data.mul_(5);
  base::DeviceEvent written;
  written.record_current(device);
  {
    const base::CurrentStreamGuard guard(other);
    early.copy_(data + 0);
    EXPECT_TRUE(torch::equal(early.cpu(), torch::ones({100})));
    written.block_current();
    late.copy_(data + 0);
    gate.open();
    EXPECT_TRUE(torch::equal(late.cpu(), torch::full({100}, 5.f)));
  }
}

TEST_F(SimulatedStreams, ReadingANumberWaits) {
  auto x = torch::zeros({}, on_device());
  for (int i = 0; i < 40; ++i) x += 1;
  EXPECT_EQ(x.item<float>(), 40);
  EXPECT_EQ((x > 1).nonzero().size(0), 1);
  EXPECT_TRUE(torch::equal(x, x.clone()));
  EXPECT_EQ(std::get<0>(at::_unique(torch::ones({3}, on_device()))).numel(), 1);
}

TEST_F(SimulatedStreams, BackwardRunsOnTheStreamOfForward) {
  auto weight = torch::ones({4}, on_device()).requires_grad_();
  auto loss = (weight * weight).sum();
  base::DeviceEvent made;
  made.record_current(device);
  made.synchronize();
  Gate gate(stream);
  {
    const base::CurrentStreamGuard guard(other);
    loss.backward();  // at its end, the current stream waits for the gradients
    base::DeviceEvent done;
    done.record(stream);
    EXPECT_FALSE(done.reached());
    gate.open();
    EXPECT_TRUE(torch::equal(weight.grad().cpu(), torch::full({4}, 2.f)));
  }
}

TEST_F(SimulatedStreams, MemoryIsFreedInTheOrderOfItsStream) {
  for (bool recorded : {false, true}) {
    auto made = torch::ones({1000}, on_device());
    base::DeviceEvent ready;
    ready.record_current(device);
    ready.block(other);
    Gate gate(other);
    at::Tensor sum;
    {
      const base::CurrentStreamGuard guard(other);
      sum = made.view({10, 100}).sum();
    }
    if (recorded) made.record_stream(other);
    made.reset();  // without record_stream, its stream does not wait for the reader
    base::DeviceEvent freed;
    freed.record_current(device);
    if (!recorded) freed.synchronize();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // lets a wrong order show
    EXPECT_EQ(freed.reached(), !recorded);
    gate.open();
    const base::CurrentStreamGuard guard(other);
    EXPECT_EQ(sum.item<float>() == 1000, recorded);
  }
}

TEST_F(SimulatedStreams, PinnedMemoryIsReadLate) {
  auto pinned = torch::ones({10}).pin_memory();
  auto ordinary = torch::ones({10});
  EXPECT_TRUE(pinned.is_pinned());
  EXPECT_TRUE(pinned.narrow(0, 9, 1).is_pinned());
  EXPECT_FALSE(ordinary.is_pinned());
  EXPECT_TRUE(torch::empty({3}, at::TensorOptions().pinned_memory(true)).is_pinned());
  Gate gate(stream);
  const auto late = pinned.to(device, /*non_blocking=*/true);
  const auto at_once = pinned.to(device, /*non_blocking=*/false);
  const auto staged = ordinary.to(device, /*non_blocking=*/true);
  pinned.fill_(7);
  ordinary.fill_(7);
  gate.open();
  EXPECT_TRUE(torch::equal(late.cpu(), torch::full({10}, 7.f)));
  EXPECT_TRUE(torch::equal(at_once.cpu(), torch::ones({10})));
  EXPECT_TRUE(torch::equal(staged.cpu(), torch::ones({10})));
}

TEST_F(SimulatedStreams, ErrorsShowAtTheNextSynchronisation) {
  const auto table = torch::ones({3, 2}, on_device());
  const auto rows = torch::tensor({1, 8}).to(device);
  const auto picked = table.index_select(0, rows);
  base::DeviceEvent after;
  after.record_current(device);
  EXPECT_THAT(error_of([&] { after.synchronize(); }), HasSubstr("index"));
  EXPECT_THAT(error_of([&] { picked.cpu(); }), HasSubstr("index"));
  EXPECT_TRUE(torch::equal(table.cpu(), torch::ones({3, 2})));  // the error is reported once
  EXPECT_THAT(error_of([&] { table.add(torch::ones({7}, on_device())); }), HasSubstr("must match the size"));
  EXPECT_THAT(error_of([&] { table.add(torch::ones({3, 2})); }), HasSubstr("same device"));
  EXPECT_THAT(error_of([&] { table.add(torch::ones({3, 2}, simulated_device(1))); }), HasSubstr("same device"));
}

TEST_F(SimulatedStreams, ViewsAndStoragesShareMemory) {
  auto base = torch::zeros({4, 6}, on_device());
  auto view = torch::empty({0}, on_device());
  view.set_(base.storage(), 6, {2, 3}, {1, 2});
  view.fill_(1);
  base.unfold(1, 2, 2).select(1, 2).add_(4);
  base.t().view({6, 2, 2}).select(0, 1).flatten().detach();
  auto host = torch::zeros({4, 6});
  host.as_strided({2, 3}, {1, 2}, 6).fill_(1);
  host.unfold(1, 2, 2).select(1, 2).add_(4);
  EXPECT_TRUE(torch::equal(base.cpu(), host));
  view.set_();
  EXPECT_EQ(view.numel(), 0);
  view.set_(base.storage());
  EXPECT_EQ(view.sizes(), (std::vector<int64_t>{24}));
  auto grown = torch::ones({3}, on_device());
  grown.resize_({5}).narrow(0, 3, 2).fill_(2);
  EXPECT_TRUE(torch::equal(grown.cpu(), torch::tensor({1.f, 1.f, 1.f, 2.f, 2.f})));
}

TEST_F(SimulatedStreams, RandomNumbersAreTheCpus) {
  const auto draw = [](c10::Device where) {
    torch::manual_seed(5);
    const auto options = at::TensorOptions().device(where);
    return torch::cat({torch::randn({5}, options), torch::rand({3}, options),
                       torch::randperm(4, options).to(at::kFloat), torch::full({6}, 0.5, options).bernoulli()});
  };
  EXPECT_TRUE(torch::equal(draw(device).cpu(), draw(c10::kCPU)));
}

}  // namespace
}  // namespace fsdp
