// Tests that training on the simulated device gives the same bits as on the CPU, for several modules, optimizers and
// dtypes.
#include "support/devices/simulated_device.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/device_stream.h"
#include "support/nets/tiny_lm.h"
#include "support/training/sharding.h"

namespace fsdp {
namespace {

using testing::batch_of;
using testing::numbers;
using testing::same_bits;
using testing::simulated_device;
namespace F = torch::nn::functional;
namespace nn = torch::nn;

const c10::Device kCpu(c10::kCPU);

// A module and its loss at a step. Inputs are created on the CPU and copied.
struct Net {
  std::shared_ptr<nn::Module> module;
  std::function<at::Tensor(c10::Device device, int step)> loss;
};

struct TrainingCase {
  std::string name;
  std::function<Net()> make;
  at::ScalarType dtype = at::kFloat;
};
void PrintTo(const TrainingCase& value, std::ostream* out) { *out << value.name; }

at::Tensor input(c10::Device device, at::ScalarType dtype, at::IntArrayRef sizes, int step) {
  return (numbers(sizes) * (1 + 0.5 * step)).to(dtype).to(device);
}

Net language_model(bool tied, at::ScalarType dtype) {
  testing::TinyLMImpl::Config config;
  config.tied = tied;
  auto model = testing::make_tiny_lm(config, dtype);
  return {model.ptr(),
          [model](c10::Device device, int step) mutable { return model->loss(batch_of(0, step).to(device)); }};
}

Net perceptron() {
  auto layers = nn::Sequential(nn::Linear(5, 11), nn::LayerNorm(nn::LayerNormOptions({11})), nn::GELU(),
                               nn::Linear(11, 3), nn::Softmax(-1));
  return {layers.ptr(), [layers](c10::Device device, int step) mutable {
            return layers->forward(input(device, at::kFloat, {7, 2, 5}, step)).square().mean();
          }};
}

Net convolutions() {
  auto layers = nn::Sequential(nn::Conv2d(nn::Conv2dOptions(3, 5, 3).stride(2).padding(1)), nn::BatchNorm2d(5),
                               nn::ReLU(), nn::MaxPool2d(2), nn::Conv2d(nn::Conv2dOptions(5, 2, 2).bias(false)));
  return {layers.ptr(), [layers](c10::Device device, int step) mutable {
            return layers->forward(input(device, at::kFloat, {2, 3, 13, 11}, step)).abs().sum();
          }};
}

Net multihead_attention() {
  auto attention = nn::MultiheadAttention(nn::MultiheadAttentionOptions(6, 3));
  return {attention.ptr(), [attention](c10::Device device, int step) mutable {
            const auto x = input(device, at::kFloat, {5, 2, 6}, step);
            return std::get<0>(attention->forward(x, x, x)).square().sum();
          }};
}

Net fused_attention() {
  auto projection = nn::Linear(6, 18);
  return {projection.ptr(), [projection](c10::Device device, int step) mutable {
            const auto parts = projection(input(device, at::kFloat, {2, 5, 6}, step)).view({2, 5, 3, 6}).chunk(3, -1);
            auto heads = [&](int i) { return parts[static_cast<size_t>(i)].transpose(1, 2); };
            return at::scaled_dot_product_attention(heads(0), heads(1), heads(2), {}, 0.0, /*is_causal=*/true).sum();
          }};
}

Net odd_operators() {
  auto linear = nn::Linear(7, 6);
  return {linear.ptr(), [linear](c10::Device device, int step) mutable {
            auto x = linear(input(device, at::kFloat, {5, 7}, step));
            const auto rows = torch::tensor({4, 0, 2}).to(device);
            auto picked = torch::cat({x.index({rows}), x.gather(0, rows.view({3, 1}).expand({3, 6}))});
            auto best = std::get<0>(torch::sort(picked, 1)).cumsum(0);
            auto positive = x.masked_select(x > 0);  // its size depends on data
            x = x.clone().index_put_({rows}, torch::zeros({6}, x.options()));
            return best.var() + positive.norm() + torch::where(x > 0.1, x, 2 * x).logsumexp(0).mean();
          }};
}

Net dropout() {
  auto linear = nn::Linear(6, 4);
  return {linear.ptr(), [linear](c10::Device device, int step) mutable {
            const auto x = linear(input(device, at::kFloat, {3, 6}, step));
            return torch::dropout(x, 0.5, /*train=*/true).sum() + (x * torch::randn_like(x)).sum();
          }};
}

// The results of two steps.
struct Outcome {
  std::vector<at::Tensor> seen;  // losses, norms, gradients of each step; then weights and buffers
};

template <typename Optimizer, typename OptimizerOptions>
Outcome train(const Net& net, c10::Device device, const OptimizerOptions& options) {
  net.module->to(device);
  Optimizer optimizer(net.module->parameters(), options);
  Outcome outcome;
  for (int step = 0; step < 2; ++step) {
    optimizer.zero_grad();
    at::Tensor loss = net.loss(device, step);
    loss.backward();
    outcome.seen.push_back(loss.detach());
    outcome.seen.push_back(torch::tensor(nn::utils::clip_grad_norm_(net.module->parameters(), 0.5)));
    for (const auto& p : net.module->parameters()) outcome.seen.push_back(p.grad().clone());
    optimizer.step();
  }
  for (const auto& p : net.module->parameters()) outcome.seen.push_back(p.detach());
  for (const auto& b : net.module->buffers()) outcome.seen.push_back(b);
  return outcome;
}

void expect_same(const Outcome& got, const Outcome& want) {
  ASSERT_EQ(got.seen.size(), want.seen.size());
  for (size_t i = 0; i < want.seen.size(); ++i) {
    EXPECT_TRUE(same_bits(got.seen[i].cpu(), want.seen[i])) << i << ": " << got.seen[i].cpu() << want.seen[i];
  }
}

template <typename Optimizer, typename OptimizerOptions>
void expect_as_on_cpu(const TrainingCase& kase, c10::Device device, const OptimizerOptions& options) {
  std::vector<Outcome> outcomes;
  for (c10::Device where : {kCpu, device}) {
    torch::manual_seed(3);
    const Net net = kase.make();
    net.module->to(kase.dtype);
    outcomes.push_back(train<Optimizer>(net, where, options));
  }
  expect_same(outcomes[1], outcomes[0]);
}

class SimulatedTraining : public ::testing::TestWithParam<TrainingCase> {};

TEST_P(SimulatedTraining, WithAdamW) {
  torch::optim::AdamWOptions options(0.01);
  options.amsgrad(true);
  expect_as_on_cpu<torch::optim::AdamW>(GetParam(), simulated_device(1), options);
}

TEST_P(SimulatedTraining, WithSgdOnASideStream) {
  torch::optim::SGDOptions options(0.1);
  options.momentum(0.9).weight_decay(0.01);
  const base::CurrentStreamGuard guard(base::take_stream(simulated_device()));
  expect_as_on_cpu<torch::optim::SGD>(GetParam(), simulated_device(), options);
}

INSTANTIATE_TEST_SUITE_P(
    Nets, SimulatedTraining,
    ::testing::Values(TrainingCase{"perceptron", perceptron},
                      TrainingCase{"language_model", [] { return language_model(false, at::kFloat); }},
                      TrainingCase{"tied", [] { return language_model(true, at::kFloat); }},
                      TrainingCase{"bf16", [] { return language_model(false, at::kBFloat16); }, at::kBFloat16},
                      TrainingCase{"fp64", [] { return language_model(true, at::kDouble); }, at::kDouble},
                      TrainingCase{"convolutions", convolutions},
                      TrainingCase{"multihead_attention", multihead_attention},
                      TrainingCase{"fused_attention", fused_attention}, TrainingCase{"odd_operators", odd_operators},
                      TrainingCase{"dropout", dropout}),
    [](const auto& info) { return info.param.name; });

// Threads train on the same device and on its default stream.
TEST(SimulatedThreads, TrainSideBySide) {
  const auto make = [] { return language_model(true, at::kFloat); };
  const torch::optim::SGDOptions options(0.1);
  const Outcome want = train<torch::optim::SGD>(make(), kCpu, options);
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      at::set_num_threads(1);
      expect_same(train<torch::optim::SGD>(make(), simulated_device(), options), want);
    });
  }
  for (auto& thread : threads) thread.join();
}

void fused_step(const std::vector<at::Tensor>& values) {
  std::vector<at::Tensor> gradients, means, squares, steps;
  for (const auto& value : values) {
    gradients.push_back(value * 0.5);
    means.push_back(torch::zeros_like(value));
    squares.push_back(torch::zeros_like(value));
    steps.push_back(torch::ones({}, value.options()));
  }
  at::_fused_adamw_(values, gradients, means, squares, {}, steps, 0.1, 0.9, 0.99, 0.01, 1e-8, /*amsgrad=*/false,
                    /*maximize=*/false);
}

TEST(SimulatedOperators, OnListsOfTensors) {
  const std::vector<at::Tensor> cpu = {numbers({3}), numbers({2, 5}), numbers({})};
  std::vector<at::Tensor> device;
  for (const auto& tensor : cpu) device.push_back(tensor.to(simulated_device()));
  at::_foreach_mul_(device, 1.5);
  at::_foreach_mul_(cpu, 1.5);
  at::_foreach_addcdiv_(device, device, at::_foreach_exp(device), 0.25);
  at::_foreach_addcdiv_(cpu, cpu, at::_foreach_exp(cpu), 0.25);
  fused_step(device);
  fused_step(cpu);
  const auto norms = at::_foreach_norm(device);
  const auto want = at::_foreach_norm(cpu);
  for (size_t i = 0; i < cpu.size(); ++i) {
    EXPECT_TRUE(same_bits(device[i].cpu(), cpu[i]));
    EXPECT_TRUE(same_bits(norms[i].cpu(), want[i]));
  }
}

at::Tensor half_of(const at::Tensor& x) { return x / 2; }

TEST(SimulatedOperators, OfOtherLibraries) {
  torch::Library library(torch::Library::FRAGMENT, "simulated_device_test", std::nullopt, __FILE__, __LINE__);
  library.def("half(Tensor x) -> Tensor");
  library.impl("half", torch::dispatch(c10::DispatchKey::CPU, &half_of));
  const auto half = c10::Dispatcher::singleton()
                        .findSchemaOrThrow("simulated_device_test::half", "")
                        .typed<at::Tensor(const at::Tensor&)>();
  const auto x = numbers({3, 5});
  EXPECT_TRUE(same_bits(half.call(x.to(simulated_device())).cpu(), x / 2));
}

}  // namespace
}  // namespace fsdp
