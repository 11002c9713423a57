// Tests the fused AdamW against LibTorch's own AdamW.
#include "optim/fused_adamw.h"

#include <gtest/gtest.h>
#include <torch/optim/adamw.h>
#include <torch/torch.h>

namespace fsdp::optim::fused_adamw_test {
namespace {

// Returns parameters of odd sizes, one of them empty, with values of usual magnitude.
std::vector<at::Tensor> make_parameters(at::ScalarType dtype) {
  torch::manual_seed(5);
  std::vector<at::Tensor> parameters;
  for (int64_t size : {13, 0, 1, 1031}) parameters.push_back(torch::randn({size}).to(dtype).set_requires_grad(true));
  return parameters;
}

std::vector<at::Tensor> copies_of(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> copies;
  for (const at::Tensor& p : parameters) copies.push_back(p.detach().clone().set_requires_grad(true));
  return copies;
}

// Sets the same gradients for both; parameter 2 gets its first gradient in step 3.
void set_gradients(int step, std::vector<at::Tensor>& a, std::vector<at::Tensor>& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    if (i == 2 && step < 3) continue;
    const at::Tensor gradient = torch::randn(a[i].sizes()).to(a[i].scalar_type());
    a[i].mutable_grad() = gradient;
    b[i].mutable_grad() = gradient.clone();
  }
}

void expect_same_training(at::ScalarType dtype, double tolerance) {
  std::vector<at::Tensor> fused = make_parameters(dtype);
  std::vector<at::Tensor> reference = copies_of(fused);
  FusedAdamW optimizer(fused,
                       {.learning_rate = 0.01, .beta1 = 0.8, .beta2 = 0.95, .epsilon = 1e-6, .weight_decay = 0.1});
  torch::optim::AdamW expected(reference,
                               torch::optim::AdamWOptions(0.01).betas({0.8, 0.95}).eps(1e-6).weight_decay(0.1));
  for (int step = 0; step < 10; ++step) {
    const double rate = 0.01 / (step + 1);
    optimizer.set_learning_rate(rate);
    static_cast<torch::optim::AdamWOptions&>(expected.param_groups()[0].options()).lr(rate);
    set_gradients(step, fused, reference);
    const double scale = step % 3 == 0 ? 0.3 : 1.0;
    for (const at::Tensor& parameter : reference) {
      if (parameter.grad().defined()) parameter.mutable_grad().mul_(scale);
    }
    optimizer.step(scale);
    expected.step();
    for (size_t i = 0; i < fused.size(); ++i) {
      const double difference = (fused[i] - reference[i]).norm().item<double>();
      EXPECT_LE(difference, tolerance * reference[i].norm().item<double>()) << "step " << step << ", parameter " << i;
    }
  }
}

TEST(FusedAdamW, EqualsLibTorchsAdamW) {
  expect_same_training(at::kDouble, 1e-13);
  expect_same_training(at::kFloat, 1e-6);
}

TEST(FusedAdamW, KeepsParametersWithoutGradients) {
  std::vector<at::Tensor> parameters = make_parameters(at::kFloat);
  const at::Tensor before = parameters[0].detach().clone();
  FusedAdamW optimizer(parameters, {.learning_rate = 1.0, .weight_decay = 0.5});
  optimizer.step();
  EXPECT_TRUE(torch::equal(parameters[0], before));
}

// LibTorch's kernel does not bump the version counters of the tensors that it writes.
TEST(FusedAdamW, CountsAsAWrite) {
  std::vector<at::Tensor> parameters = make_parameters(at::kFloat);
  std::vector<at::Tensor> squares;
  for (const at::Tensor& parameter : parameters) {
    squares.push_back(parameter.square().sum());
    parameter.mutable_grad() = torch::ones_like(parameter);
  }
  parameters[2].mutable_grad().reset();
  FusedAdamW(parameters, {}).step();
  for (size_t i : {0, 3}) {
    EXPECT_GT(parameters[i]._version(), 0u) << i;
    EXPECT_THROW(squares[i].backward(), c10::Error) << "backward through a value that is gone";
  }
  EXPECT_EQ(parameters[2]._version(), 0u);
}

TEST(FusedAdamW, KeepsStateInTheParametersDtype) {
  at::Tensor parameter = torch::ones({3}, torch::kBFloat16).set_requires_grad(true);
  FusedAdamW optimizer({parameter}, {.learning_rate = 0.5});
  parameter.mutable_grad() = torch::full({3}, 2.0, torch::kBFloat16);
  optimizer.step();
  // The first step of Adam changes a parameter by the learning rate, regardless of the gradient's size.
  EXPECT_TRUE(torch::equal(parameter.detach(), torch::full({3}, 0.5, torch::kBFloat16))) << parameter;
}

TEST(FusedAdamW, RefusesTensorsThatItWouldMisread) {
  EXPECT_THROW(FusedAdamW({torch::ones({4, 3}).t()}, {}), c10::Error);
  EXPECT_THROW(FusedAdamW({torch::ones({4}, torch::kLong)}, {}), c10::Error);
}

}  // namespace
}  // namespace fsdp::optim::fused_adamw_test
