// Rule R7: the grad() that stays on the module after a capture raises an error when it is used, and removing it clears
// the shards' gradient.
#include "engine/engine.h"
#include "support/nets/two_layers.h"
#include "support/ranks/thread_ranks.h"
#include "support/training/sharding.h"

namespace fsdp {
namespace {

using testing::expect_error;
using testing::expect_same;
using testing::gradients_of;
using testing::shard_strictly;

struct NetImpl : testing::TwoLayersImpl {
  NetImpl() : TwoLayersImpl(4, 5, 3) {}
  torch::Tensor loss(float scale = 1) { return forward(torch::ones({2, 4}) * scale).pow(2).sum(); }
};

class GradientSentinel : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    net = testing::seeded([] { return std::make_shared<NetImpl>(); });
    plain = testing::seeded([] { return std::make_shared<NetImpl>(); });
    Options options = testing::one_rank_options();
    options.use_orig_params = GetParam();
    sharded = shard_strictly(*net, options);
  }
  // Returns the gradient of each leaf, flattened and in the order of units (zeros if undefined), to compare with plain
  // training.
  static std::vector<torch::Tensor> leaf_gradients(const std::vector<torch::Tensor>& leaves) {
    std::vector<torch::Tensor> result;
    for (const torch::Tensor& leaf : leaves) {
      result.push_back(leaf.grad().defined() ? leaf.grad().flatten() : torch::zeros({leaf.numel()}));
    }
    return result;
  }
  void expect_gradients_of_plain() {
    torch::Tensor got = torch::cat(leaf_gradients(sharded->parameters()));
    torch::Tensor want = torch::cat(leaf_gradients(plain->parameters()));
    EXPECT_TRUE(torch::equal(got, want)) << got << want;
  }
  std::shared_ptr<NetImpl> net, plain;
  std::shared_ptr<ShardedModule> sharded;
};

INSTANTIATE_TEST_SUITE_P(UseOrigParams, GradientSentinel, ::testing::Bool());

TEST_P(GradientSentinel, OptimizersOnTheModuleRaiseAtTheirFirstStep) {
  using torch::optim::Optimizer;
  std::vector<torch::Tensor> parameters = net->parameters();
  std::vector<std::pair<const char*, std::unique_ptr<Optimizer>>> optimizers;
  optimizers.emplace_back("SGD", std::make_unique<torch::optim::SGD>(parameters, 0.1));
  optimizers.emplace_back("SGD with momentum",
                          std::make_unique<torch::optim::SGD>(parameters, torch::optim::SGDOptions(0.1).momentum(0.9)));
  optimizers.emplace_back("SGD with decay", std::make_unique<torch::optim::SGD>(
                                                parameters, torch::optim::SGDOptions(0.1).weight_decay(0.9)));
  optimizers.emplace_back("Adam", std::make_unique<torch::optim::Adam>(parameters, 0.1));
  optimizers.emplace_back("Adagrad", std::make_unique<torch::optim::Adagrad>(parameters, 0.1));
  optimizers.emplace_back("RMSprop", std::make_unique<torch::optim::RMSprop>(parameters, 0.1));
  optimizers.emplace_back("AdamW", std::make_unique<torch::optim::AdamW>(parameters, 0.1));  // decays weights first
  for (auto& [name, optimizer] : optimizers) {
    SCOPED_TRACE(name);
    EXPECT_TRUE(torch::equal(testing::weights_of(*sharded).at("first.weight"), plain->first->weight.detach()));
    for (int step = 0; step < 2; ++step) {  // zero_grad removes the sentinel; the next capture restores it
      optimizer->zero_grad();
      net->loss().backward();
      expect_error([&, &optimizer = optimizer] { optimizer->step(); }, {"ShardedModule::"});
    }
  }
}

TEST_P(GradientSentinel, ReadingRaisesAndNamesTheCall) {
  net->loss().backward();
  torch::Tensor gradient = net->first->weight.grad();
  ASSERT_TRUE(gradient.defined());
  EXPECT_EQ(gradient.sizes(), net->first->weight.sizes());
  auto refused = [](const std::function<void()>& read) {
    expect_error(read, {"'first.weight'", "unit 'first'", "ShardedModule::parameters()"});
  };
  refused([&] { (void)gradient.sum(); });
  refused([&] { (void)gradient.norm(); });
  refused([&] { (void)gradient.clone(); });
  refused([&] { (void)gradient.data().t().mul(2); });
  refused([&] { gradient.mul_(2); });
  refused([&] { gradient.fill_(2); });
  refused([&] { gradient.data().add_(torch::ones({5, 4})); });
  refused([&] { torch::ones({5, 4}).add_(gradient); });
  refused([&] { (void)torch::cat({torch::ones({5, 4}), gradient}); });
  refused([&] { (void)torch::_foreach_norm({gradient}); });
  refused([&] { torch::_foreach_mul_({gradient}, 2.0); });
  refused([&] { (void)gradient.data_ptr(); });
  refused([&] { (void)gradient.const_data_ptr<float>(); });
  std::ostringstream out;
  refused([&] { out << gradient; });
  refused([&] { (void)gradient[0][1].item<float>(); });
  refused([&] { (void)gradient.to(torch::kDouble); });
  refused([&] { (void)net->first->weight.grad().isnan(); });
}

TEST_P(GradientSentinel, ClippingTheModuleRaises) {
  net->loss().backward();
  expect_error([&] { torch::nn::utils::clip_grad_norm_(net->parameters(), 0.1); },
               {"ShardedModule::clip_grad_norm_", "unit '"});
  expect_error([&] { torch::nn::utils::clip_grad_value_(net->parameters(), 0.1); }, {"ShardedModule::"});
}

// Gradients accumulate over several backwards until the module's gradients are cleared, in whichever way.
TEST_P(GradientSentinel, ZeroGradOnTheModuleClearsTheShards) {
  for (bool set_to_none : {true, false}) {
    SCOPED_TRACE(set_to_none);
    net->loss().backward();
    net->loss(0.5).backward();
    net->zero_grad(set_to_none);
    plain->zero_grad();
    for (float scale : {0.25f, 2.0f}) {
      net->loss(scale).backward();
      plain->loss(scale).backward();
    }
    expect_gradients_of_plain();
    net->zero_grad(set_to_none);
    plain->zero_grad();
    net->loss().backward();
    plain->loss().backward();
    expect_gradients_of_plain();
  }
}

// No part of a cleared gradient reaches an optimizer, even without a backward in between.
TEST_P(GradientSentinel, ZeroGradOnTheModuleClearsBeforeTheNextStep) {
  for (bool set_to_none : {true, false}) {
    SCOPED_TRACE(set_to_none);
    torch::optim::SGD optimizer(sharded->parameters(), 0.5);
    net->loss().backward();
    net->zero_grad(set_to_none);
    optimizer.step();
    expect_same(testing::weights_of(*sharded), testing::weights_of(*plain));
  }
}

TEST_P(GradientSentinel, ZeroGradOfOneParameterClearsThatOne) {
  net->loss().backward();
  plain->loss().backward();
  net->first->bias.mutable_grad().zero_();
  plain->first->bias.mutable_grad().zero_();
  net->second->weight.mutable_grad().reset();
  plain->second->weight.mutable_grad().reset();
  net->loss(0.5).backward();
  plain->loss(0.5).backward();
  expect_gradients_of_plain();
}

TEST_P(GradientSentinel, ForeachZeroClearsAlsoBesideOtherTensors) {
  net->loss().backward();
  plain->loss().backward();
  torch::Tensor other = torch::ones({3});
  torch::_foreach_zero_({net->first->weight.grad(), other, net->first->bias.grad()});
  plain->first->zero_grad(false);
  EXPECT_TRUE(torch::equal(other, torch::zeros({3})));
  torch::_foreach_zero_({net->second->bias.grad()});
  plain->second->bias.mutable_grad().zero_();
  net->loss(0.5).backward();
  plain->loss(0.5).backward();
  expect_gradients_of_plain();
}

// A part of a sentinel cannot be cleared: zeroing a view may raise an error or clear that part, but never clears it
// all.
TEST_P(GradientSentinel, ZeroingAViewOfItDoesNotClearTheRest) {
  net->loss().backward();
  torch::Tensor before = torch::cat(leaf_gradients(sharded->parameters()));
  expect_error([&] { net->first->weight.grad().narrow(0, 0, 2).zero_(); }, {"'first.weight'"});
  EXPECT_TRUE(torch::equal(torch::cat(leaf_gradients(sharded->parameters())), before));
}

TEST_P(GradientSentinel, ZeroGradOfTheHandleAndOfTheOptimizer) {
  torch::optim::SGD optimizer(sharded->parameters(), 0.5);
  plain->loss().backward();
  for (const std::function<void()>& clear :
       std::vector<std::function<void()>>{[&] { sharded->zero_grad(true); }, [&] { sharded->zero_grad(false); },
                                          [&] { optimizer.zero_grad(true); }, [&] { optimizer.zero_grad(false); }}) {
    net->loss(3).backward();
    clear();
    net->loss().backward();
    expect_gradients_of_plain();
    clear();
  }
}

TEST_P(GradientSentinel, AnAssignedGradientIsRefused) {
  net->first->weight.mutable_grad() = torch::ones({5, 4});
  expect_error([&] { net->loss().backward(); }, {"a gradient was assigned", "'first.weight'"});
}

// A gradient that the user kept does not change in the next backward.
TEST_P(GradientSentinel, KeptShardGradientsStayAsTheyWere) {
  net->loss().backward();
  torch::Tensor kept = sharded->parameters()[0].grad();
  torch::Tensor copy = kept.clone();
  sharded->zero_grad();
  net->loss(2).backward();
  EXPECT_TRUE(torch::equal(kept, copy));
  EXPECT_FALSE(torch::equal(sharded->parameters()[0].grad(), copy));
}

// ---------------------------------------------------------------- several ranks

struct TwoImpl : torch::nn::Module {
  TwoImpl() {
    a = register_parameter("a", torch::linspace(1, 2, 5, at::kDouble));
    b = register_parameter("b", torch::linspace(2, 3, 5, at::kDouble));
  }
  torch::Tensor loss(bool uses_b) { return (uses_b ? a * b : a).sum(); }
  torch::Tensor a, b;
};

// Rank 1 holds b, which only rank 0 has used.
TEST_P(GradientSentinel, ClearsGradientsThatCameFromOtherRanks) {
  for (bool set_to_none : {true, false}) {
    testing::run_ranks(2, [&](const std::shared_ptr<Communicator>& world) {
      auto model = std::make_shared<TwoImpl>();
      Options options;
      options.communicator = world;
      options.use_orig_params = GetParam();
      auto sharded = fully_shard(*model, options);
      TwoImpl reference;
      for (int step = 0; step < 3; ++step) {
        model->zero_grad(set_to_none);
        reference.zero_grad(set_to_none);
        model->loss(world->rank() == 0 && step != 1).backward();
        (reference.loss(step != 1) + reference.loss(false)).div(2).backward();
        SummonOptions with_gradients;
        with_gradients.with_grads = true;
        with_gradients.writeback = false;
        sharded->summon_full_params(with_gradients, [&] {
          for (const auto& parameter : reference.named_parameters()) {
            const torch::Tensor got = model->named_parameters()[parameter.key()].grad();
            const torch::Tensor& want = parameter.value().grad();
            if (GetParam()) {
              ASSERT_EQ(got.defined(), want.defined()) << parameter.key() << ", step " << step;
            }
            if (got.defined()) {
              EXPECT_TRUE(torch::allclose(got, want.defined() ? want : torch::zeros_like(got)))
                  << parameter.key() << ", step " << step << ": " << got << want;
            }
          }
        });
      }
    });
  }
}

TEST_P(GradientSentinel, ClearingAllParametersClearsTheFlatLeaf) {
  net->loss().backward();
  net->zero_grad();
  for (const torch::Tensor& leaf : sharded->parameters()) EXPECT_FALSE(leaf.grad().defined());
  net->loss().backward();
  net->zero_grad(/*set_to_none=*/false);
  for (const torch::Tensor& leaf : sharded->parameters()) {
    ASSERT_TRUE(leaf.grad().defined());
    EXPECT_TRUE(leaf.grad().eq(0).all().item<bool>());
  }
}

// The model is evaluated in full precision between backward and step.
TEST_P(GradientSentinel, GradientsOutliveASwitchToFullPrecision) {
  auto model = testing::seeded([] { return std::make_shared<NetImpl>(); });
  Options options = testing::one_rank_options();
  options.use_orig_params = GetParam();
  options.param_dtype = at::kBFloat16;
  auto mixed = fully_shard(*model, options);
  const auto gradients = [&] {
    mixed->wait_for_gradients();
    return torch::cat(leaf_gradients(mixed->parameters()));
  };
  model->loss().backward();
  const torch::Tensor before = gradients().clone();
  ASSERT_GT(before.abs().sum().item<float>(), 0);
  mixed->set_full_precision(true);
  model->loss();
  EXPECT_TRUE(torch::equal(gradients(), before));
  mixed->set_full_precision(false);
  EXPECT_TRUE(torch::equal(gradients(), before));
  model->zero_grad();
  EXPECT_EQ(gradients().abs().sum().item<float>(), 0);
}

}  // namespace
}  // namespace fsdp
