// Tests that random numbers and autocast are the same in recomputation as in forward, and afterwards the same as
// without checkpointing.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/autocast_mode.h>

#include "fsdp/activation_checkpoint.h"
#include "recompute/testing/counted_block.h"
#include "support/training/sharding.h"

namespace fsdp::recompute::ambient_state_test {
namespace {

using testing::CountedBlock;
using testing::gradients_of;
using testing::make_block;
using testing::numbers;
using testing::same_bits;
using torch::Tensor;

struct Outcome {
  Tensor loss;
  std::map<std::string, Tensor> gradients;
  Tensor drawn_between, drawn_after;
};

// Runs two blocks with dropout; random numbers are drawn between forward and backward and at the end.
Outcome run(const std::function<Tensor(CountedBlock&, const Tensor&)>& call) {
  CountedBlock first = make_block(16, 0.5), second = make_block(16, 0.25);
  torch::manual_seed(5);
  Outcome outcome;
  Tensor loss = call(second, call(first, numbers({8, 16}))).pow(2).sum();
  outcome.drawn_between = torch::rand({3});
  loss.backward();
  outcome.drawn_after = torch::rand({3});
  outcome.loss = loss.detach();
  outcome.gradients = gradients_of(*first);
  for (const auto& [name, gradient] : gradients_of(*second)) outcome.gradients["second." + name] = gradient;
  return outcome;
}

TEST(AmbientState, DropoutRepeatsAndLaterDrawsStayTheSame) {
  Outcome want = run([](CountedBlock& block, const Tensor& x) { return block(x); });
  Outcome got = run([](CountedBlock& block, const Tensor& x) { return activation_checkpoint_module({}, block, x); });
  EXPECT_TRUE(same_bits(got.loss, want.loss));
  EXPECT_TRUE(same_bits(got.drawn_between, want.drawn_between));
  EXPECT_TRUE(same_bits(got.drawn_after, want.drawn_after));
  testing::expect_same(got.gradients, want.gradients);
}

TEST(AmbientState, WithoutPreservingDropoutDraws) {
  Outcome want = run([](CountedBlock& block, const Tensor& x) { return block(x); });
  Outcome got = run([](CountedBlock& block, const Tensor& x) {
    return activation_checkpoint_module({.preserve_rng_state = false}, block, x);
  });
  EXPECT_TRUE(same_bits(got.loss, want.loss));
  EXPECT_FALSE(same_bits(got.drawn_after, want.drawn_after));
  EXPECT_FALSE(same_bits(got.gradients.at("linear.weight"), want.gradients.at("linear.weight")));
}

TEST(AmbientState, FurtherGeneratorsRepeat) {
  std::vector<Tensor> gradients;
  for (bool recompute : {false, true}) {
    at::Generator generator = at::detail::createCPUGenerator(11);
    Tensor x = torch::ones({64}).set_requires_grad(true);
    const auto function = [&](const Tensor& in) { return in * torch::rand({64}, generator); };
    Tensor y =
        recompute ? activation_checkpoint(CheckpointOptions{.generators = {generator}}, function, x) : function(x);
    Tensor between = torch::rand({3}, generator);
    y.sum().backward();
    gradients.push_back(torch::cat({x.grad(), y.detach(), between, torch::rand({3}, generator)}));
  }
  EXPECT_TRUE(same_bits(gradients[1], gradients[0]));
}

class Autocast {
 public:
  Autocast() : before_(at::autocast::is_autocast_enabled(at::kCPU)) {
    at::autocast::increment_nesting();
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  }
  ~Autocast() {
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, before_);
  }

 private:
  bool before_;
};

TEST(AmbientState, AutocastIsAsInForward) {
  Outcome want = run([](CountedBlock& block, const Tensor& x) {
    Autocast autocast;
    return block(x);
  });
  Outcome got = run([](CountedBlock& block, const Tensor& x) {
    Autocast autocast;
    return activation_checkpoint_module({}, block, x);
  });
  EXPECT_EQ(want.loss.scalar_type(), at::kBFloat16);
  EXPECT_TRUE(same_bits(got.loss, want.loss));
  testing::expect_same(got.gradients, want.gradients);

  CountedBlock plain = make_block(16), recomputed = make_block(16);
  Tensor want_loss = plain(numbers({8, 16})).sum();
  Tensor loss = activation_checkpoint_module({}, recomputed, numbers({8, 16})).sum();
  Autocast only_in_backward;
  want_loss.backward();
  loss.backward();
  testing::expect_same(gradients_of(*recomputed), gradients_of(*plain));
  EXPECT_TRUE(at::autocast::is_autocast_enabled(at::kCPU) && at::autocast::is_autocast_cache_enabled());
}

// A cast left over from a recomputation would be used in the next step, with the weights of this one.
TEST(AmbientState, AutocastKeepsNoCastFromStepToStep) {
  std::vector<std::vector<double>> losses(2);
  for (bool recompute : {false, true}) {
    CountedBlock block = make_block(16);
    const auto loss_in_autocast = [&] {
      Autocast autocast;
      Tensor x = numbers({8, 16});
      return (recompute ? activation_checkpoint_module({}, block, x) : block(x)).sum();
    };
    for (int step = 0; step < 3; ++step) {
      block->zero_grad();
      Tensor loss = loss_in_autocast();
      loss.backward();
      testing::descend(block->parameters());
      losses[recompute].push_back(loss.item<double>());
    }
  }
  EXPECT_NE(losses[0][1], losses[0][0]);
  EXPECT_EQ(losses[1], losses[0]);
}

}  // namespace
}  // namespace fsdp::recompute::ambient_state_test
