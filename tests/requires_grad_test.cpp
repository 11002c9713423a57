// requires_grad that is changed after fully_shard: parameters freeze and unfreeze as in one process, with all
// strategies, both cuts and any part of a FlatParameter.
#include "engine/engine.h"
#include "support/faults/error_of.h"
#include "support/nets/branched_net.h"
#include "support/ranks/thread_ranks.h"
#include "support/training/one_process.h"

namespace fsdp {
namespace {

using testing::BranchedNet;
using testing::BranchedNetImpl;
using testing::errors_of_ranks;
using testing::expect_as_in_one_process;
using testing::expect_error;
using testing::expect_same;
using testing::RankStep;
using testing::run_ranks;
using testing::ShardingCase;
using testing::weights_of;
using World = std::shared_ptr<Communicator>;

void set_requires_grad(const torch::nn::Module& module, bool on) {
  for (torch::Tensor& parameter : module.parameters()) parameter.set_requires_grad(on);
}

// Expects that each leaf requires a gradient if any of its parameters does.
void expect_leaves_follow(ShardedModule& sharded, const BranchedNetImpl& net) {
  const auto parameters = net.named_parameters();
  for (const auto& [name, leaf] : sharded.named_parameters()) {
    if (const torch::Tensor* parameter = parameters.find(name)) {
      EXPECT_EQ(leaf.requires_grad(), parameter->requires_grad()) << name;
    }
  }
  for (const auto& unit : sharded.engine().units()) {
    for (const auto& flat : unit->flat_parameters())
      EXPECT_EQ(flat->flat_leaf().requires_grad(), flat->requires_grad());
  }
}

class RequiresGrad : public ::testing::TestWithParam<ShardingCase> {};
INSTANTIATE_TEST_SUITE_P(All, RequiresGrad, ::testing::ValuesIn(testing::sharding_cases()),
                         [](const auto& info) { return testing::name_of(info.param); });

BranchedNet make_half_frozen() {
  BranchedNet net;
  set_requires_grad(*net->a, false);
  set_requires_grad(*net->b, false);
  return net;
}

TEST_P(RequiresGrad, OfWholeLayersChangesBetweenSteps) {
  expect_as_in_one_process(GetParam(), make_half_frozen, [](BranchedNetImpl& net, RankStep rank) {
    if (rank.step == 1) {
      set_requires_grad(*net.a, true);
      set_requires_grad(*net.c, false);
    }
    rank.backward(net.loss(rank.x()));
    if (rank.sharded) expect_leaves_follow(*rank.sharded, net);
  });
}

TEST_P(RequiresGrad, OfPartsOfAFlatParameter) {
  if (!GetParam().use_orig_params) return;  // refused: see below
  expect_as_in_one_process(GetParam(), testing::make_branched_net, [](BranchedNetImpl& net, RankStep rank) {
    const bool first = rank.step == 0;
    net.a->weight.set_requires_grad(first);
    net.b->bias.set_requires_grad(!first);
    net.scale.set_requires_grad(!first);
    rank.backward(net.loss(rank.x()));
    if (rank.sharded) expect_leaves_follow(*rank.sharded, net);
  });
}

// Adapters of a frozen model, as they are tuned one after the other.
TEST_P(RequiresGrad, OfAModelThatWasFrozenAsAWhole) {
  const auto make = [] {
    BranchedNet net;
    set_requires_grad(*net, false);
    return net;
  };
  expect_as_in_one_process(GetParam(), make, [](BranchedNetImpl& net, RankStep rank) {
    set_requires_grad(rank.step == 0 ? *net.c : *net.a, true);
    set_requires_grad(rank.step == 0 ? *net.a : *net.c, false);
    rank.backward(net.loss(rank.x()));
  });
}

class RequiresGradOnRanks : public ::testing::TestWithParam<int> {
 protected:
  void on_ranks(const std::function<void(const World&, BranchedNet&, ShardedModule&)>& body, bool orig = true) const {
    run_ranks(GetParam(), [&](const World& world) {
      auto net = testing::seeded([] { return BranchedNet(); });
      Options options;
      options.communicator = world;
      options.use_orig_params = orig;
      options.auto_wrap_policy = testing::every_module();
      auto sharded = fully_shard(*net, options);
      body(world, net, *sharded);
    });
  }
  const torch::Tensor x = torch::ones({3, 4}, at::kDouble);
};
INSTANTIATE_TEST_SUITE_P(Ranks, RequiresGradOnRanks, ::testing::Values(1, 2, 3));

TEST_P(RequiresGradOnRanks, SetByTheHandleOrOnALeaf) {
  on_ranks([this](const World&, BranchedNet& net, ShardedModule& sharded) {
    sharded.set_requires_grad(net->a->weight, false);
    EXPECT_FALSE(net->a->weight.requires_grad());
    expect_leaves_follow(sharded, *net);
    for (const auto& [name, leaf] : sharded.named_parameters()) {
      if (name == "b.bias") leaf.set_requires_grad(false);
    }
    net->loss(x).backward();
    EXPECT_FALSE(net->b->bias.requires_grad());
    for (const auto& [name, leaf] : sharded.named_parameters()) {
      const bool unused = name.find("side.") == 0 || name.find("spare.") == 0;
      if (leaf.numel() == 0) continue;
      EXPECT_EQ(leaf.grad().defined(), !unused && name != "a.weight" && name != "b.bias") << name;
    }
    expect_error([&] { sharded.set_requires_grad(torch::ones({2}), true); }, {"not a parameter of this module"});
    expect_error([&] { sharded.set_requires_grad(net->a->weight.detach(), true); }, {"not a parameter of this module"});
  });
}

// Plain autograd accumulates nothing into a tensor that was frozen since forward.
TEST_P(RequiresGradOnRanks, FrozenBetweenForwardAndBackward) {
  on_ranks([this](const World&, BranchedNet& net, ShardedModule& sharded) {
    const torch::Tensor loss = net->loss(x);
    set_requires_grad(*net->b, false);
    loss.backward();
    for (const auto& [name, leaf] : sharded.named_parameters()) {
      EXPECT_FALSE(name.find("b.") == 0 && leaf.grad().defined()) << name;
    }
    sharded.zero_grad();
    net->loss(x).backward();
    EXPECT_FALSE(net->b->weight.grad().defined());
    EXPECT_TRUE(net->a->weight.grad().defined());
  });
}

TEST_P(RequiresGradOnRanks, AFrozenParameterKeepsItsGradientUntilItIsCleared) {
  for (const bool on_module : {true, false}) {
    on_ranks([&](const World&, BranchedNet& net, ShardedModule& sharded) {
      net->loss(x).backward();
      const double norm = sharded.grad_norm().item<double>();
      set_requires_grad(*net, false);
      sharded.parameters();
      EXPECT_EQ(sharded.grad_norm().item<double>(), norm);
      EXPECT_EQ(sharded.reduced_grad_norm().item<double>(), norm);
      on_module ? net->zero_grad() : sharded.zero_grad();
      EXPECT_EQ(sharded.grad_norm().item<double>(), 0);
      for (const torch::Tensor& leaf : sharded.parameters()) EXPECT_FALSE(leaf.grad().defined());
      sharded.zero_grad();
      for (const MemoryCategory& category : sharded.diagnostics().memory()) {
        EXPECT_TRUE(category.name.find("gradient") == std::string::npos || category.current == 0) << category.name;
      }
    });
  }
}

TEST_P(RequiresGradOnRanks, AcrossASwitchOfPrecision) {
  on_ranks([this](const World&, BranchedNet& net, ShardedModule& sharded) {
    set_requires_grad(*net->a, false);
    net->loss(x).backward();
    sharded.zero_grad();
    sharded.set_full_precision(true);
    set_requires_grad(*net->a, true);
    net->loss(x).backward();
    EXPECT_TRUE(net->a->weight.grad().defined());
    EXPECT_GT(sharded.grad_norm().item<double>(), 0);
  });
}

TEST_P(RequiresGradOnRanks, WhatCannotFollowIsRefused) {
  on_ranks(
      [this](const World&, BranchedNet& net, ShardedModule& sharded) {
        net->a->bias.set_requires_grad(false);
        expect_error([&] { (void)net->loss(x); }, {"unit 'a'", "'a.weight'", "'a.bias'", "use_orig_params"});
        net->a->bias.set_requires_grad(true);
        {
          auto no_sync = sharded.no_sync();
          net->loss(x).backward();
        }
        set_requires_grad(*net->b, false);
        expect_error([&] { (void)net->loss(x); }, {"unit 'b'", "'b.weight'", "accumulated without communication"});
        set_requires_grad(*net->b, true);
        net->loss(x).backward();
      },
      /*orig=*/false);
}

// A gradient that the engine does not expect must not stay on the rank.
TEST_P(RequiresGradOnRanks, SetWhileTheUnitIsInUse) {
  on_ranks([this](const World&, BranchedNet& net, ShardedModule&) {
    net->c->weight.set_requires_grad(false);
    const torch::Tensor h = torch::tanh(net->b(net->encode(x)));
    const torch::Tensor first = torch::nn::functional::linear(h, net->c->weight);
    net->c->weight.set_requires_grad(true);
    const torch::Tensor loss = (first + torch::nn::functional::linear(h, net->c->weight)).sum();
    expect_error([&] { loss.backward(); }, {"unit 'c'", "'c.weight'", "while its unit was in use", "between steps"});
    EXPECT_FALSE(net->c->weight.grad().defined());
  });
}

TEST(RequiresGradDivergence, ARankThatFreezesAloneIsNoticed) {
  for (const int ranks : {2, 3}) {
    const auto errors = errors_of_ranks(ranks, [](const World& world) {
      auto net = testing::seeded([] { return BranchedNet(); });
      Options options;
      options.communicator = world;
      auto sharded = fully_shard(*net, options);
      const torch::Tensor x = torch::ones({3, 4}, at::kDouble);
      net->loss(x).backward();
      if (world->rank() == 1) set_requires_grad(*net->a, false);
      net->loss(x).backward();
    });
    for (const std::string& error : errors) EXPECT_NE(error, testing::kNoError);
  }
}

}  // namespace
}  // namespace fsdp
