// Tests SGD against LibTorch's own SGD, bit by bit.
#include "optim/sgd.h"

#include <gtest/gtest.h>
#include <torch/optim/sgd.h>
#include <torch/torch.h>

#include "fsdp/optimizer_state.h"
#include "support/faults/error_of.h"

namespace fsdp::optim::sgd_test {
namespace {

// Parameters of odd sizes, one of them empty, for this project's SGD and LibTorch's, with the same values.
struct Pair {
  explicit Pair(const SgdOptions& options, at::ScalarType dtype = at::kFloat)
      : own(make_parameters(dtype)),
        torchs(make_parameters(dtype)),
        optimizer(own, options),
        expected(torchs, torch::optim::SGDOptions(options.learning_rate)
                             .momentum(options.momentum)
                             .weight_decay(options.weight_decay)) {}

  static std::vector<at::Tensor> make_parameters(at::ScalarType dtype) {
    torch::manual_seed(5);
    std::vector<at::Tensor> parameters;
    for (int64_t size : {13, 0, 1, 1031}) parameters.push_back(torch::randn({size}).to(dtype).set_requires_grad(true));
    return parameters;
  }

  // Takes a step with `scale` times new gradients; parameter 2 gets its first gradient in step 3.
  void step(int number, double scale) {
    for (size_t i = 0; i < own.size(); ++i) {
      if (i == 2 && number < 3) continue;
      const at::Tensor gradient = torch::randn(own[i].sizes()).to(own[i].scalar_type());
      own[i].mutable_grad() = gradient;
      torchs[i].mutable_grad() = gradient * scale;
    }
    const double rate = 0.1 / (number + 1);
    optimizer.set_learning_rate(rate);
    static_cast<torch::optim::SGDOptions&>(expected.param_groups()[0].options()).lr(rate);
    optimizer.step(scale);
    expected.step();
  }

  void expect_same_bits() const {
    for (size_t i = 0; i < own.size(); ++i) EXPECT_TRUE(torch::equal(own[i], torchs[i])) << "parameter " << i;
  }

  std::vector<at::Tensor> own, torchs;
  Sgd optimizer;
  torch::optim::SGD expected;
};

TEST(Sgd, EqualsLibTorchsSgd) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
    for (const double momentum : {0.0, 0.9}) {
      for (const double weight_decay : {0.0, 0.1}) {
        SCOPED_TRACE(c10::str(dtype, ", momentum ", momentum, ", weight decay ", weight_decay));
        Pair pair({.momentum = momentum, .weight_decay = weight_decay}, dtype);
        for (int step = 0; step < 8; ++step) pair.step(step, step % 3 == 0 ? 0.25 : 1.0);
        pair.expect_same_bits();
      }
    }
  }
}

TEST(Sgd, PartsChangeNoBits) {
  Pair pair({.momentum = 0.9, .weight_decay = 0.1});
  int parts = 0;
  pair.optimizer.after_each_part([&] { ++parts; }, /*nbytes=*/50);
  for (int step = 0; step < 4; ++step) pair.step(step, 0.5);
  pair.expect_same_bits();
  EXPECT_EQ(parts, 4 * 3) << "the first parameter, those up to the largest, and the rest";
}

TEST(Sgd, KeepsGradientsAndParametersWithoutThem) {
  at::Tensor with = torch::ones({3}).set_requires_grad(true), without = torch::ones({3}).set_requires_grad(true);
  with.mutable_grad() = torch::full({3}, 2.0);
  Sgd optimizer({with, without}, {.learning_rate = 0.5, .momentum = 0.9, .weight_decay = 1.0});
  optimizer.step(0.5);
  EXPECT_TRUE(torch::equal(with.grad(), torch::full({3}, 2.0)));
  EXPECT_TRUE(torch::equal(with.detach(), torch::zeros({3})));
  EXPECT_TRUE(torch::equal(without.detach(), torch::ones({3})));
}

TEST(Sgd, GradientsOfAnotherDtypeAreCast) {
  at::Tensor parameter = torch::ones({3}).set_requires_grad(true);
  parameter.mutable_grad() = torch::full({3}, 2.0, at::kBFloat16);
  Sgd optimizer({parameter}, {.learning_rate = 0.25, .momentum = 0.5});
  optimizer.step();
  optimizer.step();
  EXPECT_TRUE(torch::equal(parameter.detach(), torch::full({3}, -0.25))) << parameter;
  EXPECT_EQ(optimizer.named_state()->leaf(parameter)->tensors.at("momentum_buffer").scalar_type(), at::kFloat);
}

// The state goes back and forth between the two: each continues as the other would have.
TEST(Sgd, StateIsLibTorchs) {
  Pair pair({.learning_rate = 0.1, .momentum = 0.9, .weight_decay = 0.1});
  for (int step = 0; step < 2; ++step) pair.step(step, 1.0);
  const auto own = pair.optimizer.named_state();
  const auto expected = state_of(pair.expected);
  EXPECT_EQ(own->options(0), expected->options(0));
  EXPECT_EQ(own->groups().at(0).size(), 4U);
  EXPECT_FALSE(own->leaf(pair.own[2]));
  EXPECT_FALSE(expected->leaf(pair.torchs[2]));
  for (size_t i : {0, 1, 3}) {
    EXPECT_TRUE(torch::equal(own->leaf(pair.own[i])->tensors.at("momentum_buffer"),
                             expected->leaf(pair.torchs[i])->tensors.at("momentum_buffer")));
  }
  EXPECT_EQ(pair.optimizer.state_nbytes(), 4 * (13 + 1031));

  Sgd other(pair.own, {});
  const auto restored = other.named_state();
  restored->check_options(0, expected->options(0));
  restored->set_options(0, expected->options(0));
  EXPECT_EQ(restored->options(0), own->options(0));
  for (size_t i = 0; i < pair.own.size(); ++i) {
    std::optional<LeafState> state = expected->leaf(pair.torchs[i]);
    if (state) state->tensors.at("momentum_buffer") = state->tensors.at("momentum_buffer").clone();
    restored->set_leaf(pair.own[i], state);
  }
  for (size_t i = 0; i < pair.own.size(); ++i) {
    pair.own[i].mutable_grad() = torch::ones_like(pair.own[i]);
    pair.torchs[i].mutable_grad() = torch::ones_like(pair.torchs[i]);
  }
  other.step();
  pair.expected.step();
  pair.expect_same_bits();
}

TEST(Sgd, HasNoStateWithoutMomentum) {
  EXPECT_EQ(Sgd::state_tensors({}), 0);
  EXPECT_EQ(Sgd::state_tensors({.momentum = 0.5}), 1);
  Pair pair({});
  pair.step(5, 1.0);
  EXPECT_EQ(pair.optimizer.state_nbytes(), 0);
  EXPECT_FALSE(pair.optimizer.named_state()->leaf(pair.own[0]));
}

TEST(Sgd, RefusesStateOfOtherOptimizers) {
  Pair pair({});
  const auto state = pair.optimizer.named_state();
  const at::Tensor& leaf = pair.own[0];
  const LeafState of_adam{{{"exp_avg", torch::zeros({13})}}, {}};
  EXPECT_EQ(testing::error_of([&] { state->check_leaf(leaf, of_adam); }),
            "Sgd: has no state 'exp_avg': was it saved by another optimizer?");
  EXPECT_EQ(testing::error_of([&] { state->set_leaf(torch::ones({2}), std::nullopt); }),
            "Sgd: a tensor of shape [2] is not a leaf of this optimizer");
  EXPECT_EQ(testing::error_of([&] { state->options(1); }), "Sgd: has only parameter group 0, not 1");
  auto options = state->options(0);
  options["nesterov"] = 1.0;
  EXPECT_EQ(testing::error_of([&] { state->check_options(0, options); }),
            "Sgd: option 'nesterov' is always 0, but 1 was given: was it saved by another optimizer?");
  EXPECT_THROW(Sgd({torch::ones({4}, torch::kLong)}, {}), c10::Error);
}

}  // namespace
}  // namespace fsdp::optim::sgd_test
