// Units that are cut from the order in which parameters are used: which units are made, when, and what is kept. The
// `automatic` cases of autograd_test, autograd_failures_test and accumulation_test check that training is correct with
// them, including changing control flow, several forwards, recomputation and frozen parts.

#include "comm/testing/faulty_communicator.h"
#include "engine/engine.h"
#include "support/nets/branched_net.h"
#include "support/nets/tiny_lm.h"
#include "support/ranks/over_gloo.h"
#include "support/ranks/thread_ranks.h"
#include "support/training/automatic_units.h"
#include "support/training/sharding.h"

namespace fsdp {
namespace {

using enum ShardingStrategy;
using testing::automatic;
using testing::BranchedNet;
using ::testing::ElementsAre;
using testing::expect_error;
using testing::expect_same;
using ::testing::HasSubstr;
using testing::make_tiny_lm;
using testing::names_of;
using testing::one_rank;
using testing::run_ranks;
using testing::TinyLM;
using testing::weights_of;

torch::Tensor input() { return torch::linspace(-1, 1, 12, at::kDouble).view({3, 4}); }

// ---------------------------------------------------------------- which units

TEST(AutoUnits, AreCutWhenTheFirstBackwardBegins) {
  BranchedNet net = testing::seeded([] { return BranchedNet(); });
  auto sharded = fully_shard(net, automatic(one_rank()));
  EXPECT_EQ(names_of(*sharded).size(), 11);
  EXPECT_THAT(sharded->diagnostics().describe_units(), HasSubstr("unit 'a.weight' FULL_SHARD, to be cut with others"));
  torch::Tensor loss = net->loss(input());
  EXPECT_EQ(names_of(*sharded).size(), 11);
  EXPECT_TRUE(sharded->execution_order().empty());
  loss.backward();
  // Used parameters come in the order of use, with a and the root's scale in one unit. The parameters of side and
  // spare, which were not used, come last.
  EXPECT_THAT(names_of(*sharded),
              ElementsAre("a.bias..scale", "b.bias..b.weight", "c.bias..c.weight", "side.weight..spare.bias"));
  EXPECT_EQ(sharded->execution_order(), (ExecutionOrder{{"a.bias", "a.weight"},
                                                        {"scale"},
                                                        {"b.bias", "b.weight"},
                                                        {"c.bias", "c.weight"},
                                                        {},
                                                        {"side.weight"},
                                                        {"side.bias"},
                                                        {"spare.weight"},
                                                        {"spare.bias"}}));
}

TEST(AutoUnits, JoinSiblingsWithoutTheirParent) {
  torch::nn::Sequential net(torch::nn::Linear(4, 4), torch::nn::Linear(4, 4), torch::nn::Linear(4, 4),
                            torch::nn::Linear(4, 4));
  auto sharded = fully_shard(net, automatic(one_rank(), 2 * 20 * 4));
  net->forward(torch::ones({2, 4})).sum().backward();
  EXPECT_THAT(names_of(*sharded), ElementsAre("0.bias..1.weight", "2.bias..3.weight"));
}

TEST(AutoUnits, ATiedWeightIsTheRoot) {
  TinyLM model = make_tiny_lm({.tied = true});
  auto sharded = fully_shard(model, automatic(one_rank(), 400));
  model->loss(testing::batch_of(0, 0)).backward();
  EXPECT_EQ(names_of(*sharded).front(), "embed.weight (root)");
  auto order = sharded->execution_order();
  EXPECT_EQ(order.front(), std::vector<std::string>{"embed.weight"});
  EXPECT_EQ(order.back(), std::vector<std::string>{"embed.weight"});
}

// If all parameters are used equally often, none counts as used again after others, even with several forwards before
// backward.
TEST(AutoUnits, SeveralForwardsBeforeBackwardAreNotReturns) {
  BranchedNet net;
  auto sharded = fully_shard(net, automatic(one_rank()));
  (net->loss(input()) + net->loss(input() * 2)).backward();
  EXPECT_THAT(names_of(*sharded),
              ElementsAre("a.bias..scale", "b.bias..b.weight", "c.bias..c.weight", "side.weight..spare.bias"));
}

TEST(AutoUnits, DoNotReachOverInnerUnits) {
  BranchedNet net;
  Options plain;
  plain.communicator = one_rank();
  fully_shard(net->b, plain);
  auto sharded = fully_shard(net, automatic(plain.communicator, 1 << 20));
  net->loss(input()).backward();
  EXPECT_THAT(names_of(*sharded), ElementsAre("b", "a.bias..scale", "c.bias..c.weight", "side.weight..spare.bias"));
}

TEST(AutoUnits, OfInnerModulesAreCutWithTheOutersOwn) {
  BranchedNet net;
  auto communicator = one_rank();
  fully_shard(net->b, automatic(communicator, 1 << 20));
  auto sharded = fully_shard(net, automatic(communicator, 1 << 20));
  net->loss(input()).backward();
  EXPECT_THAT(names_of(*sharded),
              ElementsAre("b.bias..b.weight", "a.bias..scale", "c.bias..c.weight", "side.weight..spare.bias"));
}

// ---------------------------------------------------------------- memory

struct Chain : torch::nn::Module {
  Chain() {
    for (int i = 0; i < 12; ++i) layers.push_back(register_module("l" + std::to_string(i), torch::nn::Linear(16, 16)));
  }
  torch::Tensor forward(torch::Tensor x) {
    for (auto& layer : layers) x = torch::tanh(layer(x));
    return x.sum();
  }
  std::vector<torch::nn::Linear> layers;
};

class AutoUnitsMemory : public ::testing::TestWithParam<std::pair<int, int64_t>> {};
INSTANTIATE_TEST_SUITE_P(All, AutoUnitsMemory,
                         ::testing::Values(std::pair(2, 5248), std::pair(2, 8 * 1088), std::pair(3, 12 * 1100),
                                           std::pair(4, 5248), std::pair(8, 24 * 1088)));

// Bounds the memory gathered and captured at a time, after the parameters were cut.
TEST_P(AutoUnitsMemory, StaysBelowTheBound) {
  auto [ranks, bound] = GetParam();
  testing::run_ranks_over_gloo(ranks, [bound = bound](std::shared_ptr<Communicator> communicator) {
    Chain net;
    Options options = automatic(communicator, 1 << 20);
    options.auto_units->memory_bound = bound;
    auto sharded = fully_shard(net, options);
    for (int i = 0; i < 3; ++i) {
      sharded->zero_grad();
      net.forward(torch::ones({2, 16})).backward();
    }
    EngineStats stats = sharded->diagnostics().stats();
    EXPECT_LE(stats.peak_gathered_bytes + stats.peak_gradient_buffer_bytes, bound);
    EXPECT_GE(stats.peak_gathered_bytes + stats.peak_gradient_buffer_bytes, bound / 2) << "smaller than needed";
  });
}

TEST(AutoUnits, ATooSmallBoundNamesTheNeededSize) {
  run_ranks(2, [](std::shared_ptr<Communicator> communicator) {
    Chain net;
    Options options = automatic(communicator);
    options.auto_units->memory_bound = 2000;
    auto sharded = fully_shard(net, options);
    torch::Tensor loss = net.forward(torch::ones({2, 16}));
    // Two layers, gathered and captured. Parameters that one operator uses together are not split.
    expect_error([&] { loss.backward(); }, {"memory_bound of 2000 bytes", "take 5248 bytes at a time"});
  });
}

// ---------------------------------------------------------------- other moments

// Covers models that only run inference or are evaluated before training.
TEST(AutoUnits, CanBeCutWithoutABackward) {
  run_ranks(3, [](std::shared_ptr<Communicator> communicator) {
    BranchedNet net = testing::seeded([] { return BranchedNet(); });
    torch::Tensor want, got;
    {
      torch::NoGradGuard no_grad;
      want = net->forward(input());
      auto sharded = fully_shard(net, automatic(communicator));
      EXPECT_TRUE(torch::equal(net->forward(input()), want));
      sharded->cut_units();
      sharded->cut_units();
      EXPECT_EQ(names_of(*sharded).size(), 4);
      EXPECT_TRUE(torch::equal(net->forward(input()), want));
    }
    net->loss(input()).backward();
  });
}

TEST(AutoUnits, AreCutInFullPrecisionToo) {
  run_ranks(2, [](std::shared_ptr<Communicator> communicator) {
    BranchedNet net = testing::seeded([] { return BranchedNet(); });
    torch::Tensor want = net->loss(input());
    Options options = automatic(communicator);
    options.param_dtype = at::kFloat;
    auto sharded = fully_shard(net, options);
    sharded->set_full_precision(true);
    torch::Tensor loss = net->loss(input());
    EXPECT_TRUE(torch::equal(loss, want));
    loss.backward();
    EXPECT_EQ(names_of(*sharded).size(), 4);
    EXPECT_TRUE(torch::equal(net->loss(input()), want));
    sharded->set_full_precision(false);
    torch::Tensor rounded = net->loss(input());
    EXPECT_FALSE(torch::equal(rounded, want));
    EXPECT_TRUE(torch::allclose(rounded.to(at::kDouble), want, 1e-5));
  });
}

TEST(AutoUnits, AKnownOrderCutsAtOnce) {
  ExecutionOrder order;
  std::vector<std::string> names;
  std::map<std::string, torch::Tensor> weights[2];
  for (bool known : {false, true}) {
    run_ranks(3, [&](std::shared_ptr<Communicator> communicator) {
      TinyLM model = make_tiny_lm({.tied = true}, at::kDouble);
      Options options = automatic(communicator, 600);
      if (known) options.auto_units->order = order;
      auto sharded = fully_shard(model, options);
      EXPECT_EQ(names_of(*sharded).size() == names.size(), known);
      for (int step = 0; step < 3; ++step) {
        sharded->zero_grad();
        model->loss(testing::batch_of(communicator->rank(), step)).backward();
        testing::descend(sharded->parameters());
      }
      auto result = weights_of(*sharded);
      auto made = names_of(*sharded);
      auto used = sharded->execution_order();
      if (communicator->rank() == 0) {
        weights[known] = result;
        if (known) {
          EXPECT_EQ(made, names);
          EXPECT_EQ(used, order);
        }
        names = made, order = used;
      }
    });
  }
  expect_same(weights[1], weights[0]);
}

// If nothing is gathered, ranks may use parameters in different orders in forward. All ranks then cut as rank 0 does.
TEST(AutoUnits, RanksThatDifferFollowRank0) {
  run_ranks(2, [](std::shared_ptr<Communicator> communicator) {
    auto two = torch::nn::ModuleList(torch::nn::Linear(3, 3), torch::nn::Linear(3, 3));
    Options options = automatic(communicator, 48);
    options.sharding_strategy = kNoShard;
    auto sharded = fully_shard(two, options);
    auto run = [&](int64_t i, torch::Tensor x) { return two->ptr(i)->as<torch::nn::Linear>()->forward(x); };
    int64_t first = communicator->rank();
    (void)run(1 - first, run(first, torch::ones({1, 3})));
    run(1, run(0, torch::ones({1, 3}))).sum().backward();
    EXPECT_THAT(names_of(*sharded), ElementsAre("0.bias..0.weight", "1.bias..1.weight"));
  });
}

// ---------------------------------------------------------------- errors

TEST(AutoUnits, OptionsThatContradict) {
  BranchedNet net;
  Options options = automatic(one_rank());
  options.auto_wrap_policy = testing::every_module();
  expect_error([&] { fully_shard(net, options); }, {"auto_units and auto_wrap_policy both define the units"});
  options.auto_wrap_policy = {};
  options.use_orig_params = false;
  expect_error([&] { fully_shard(net, options); }, {"auto_units needs use_orig_params=true"});
  options.use_orig_params = true;
  options.auto_units->target_bytes = 0;
  expect_error([&] { fully_shard(net, options); }, {"auto_units: target_bytes=0 must be positive"});
  options.auto_units = AutoUnits{.order = {{"a.weight"}, {"nothing"}}};
  expect_error([&] { fully_shard(net, options); }, {"auto_units: order names 'nothing'"});
  expect_error([&] { fully_shard({net->a.ptr(), net->b.ptr()}, automatic(one_rank())); },
               {"auto_units cannot be used with a list of modules"});
  fully_shard(net, automatic(one_rank()));
}

TEST(AutoUnits, AreNotCutWhileInUse) {
  BranchedNet net;
  auto sharded = fully_shard(net, automatic(one_rank()));
  expect_error([&] { sharded->pin({}, [&] { net->loss(input()).backward(); }); },
               {"unit 'scale'", "Call ShardedModule::cut_units first"});
  expect_error([&] { sharded->set_modules_to_forward_prefetch(*net, {*net}); },
               {"cannot be set before its units are made"});
  net->loss(input()).backward();
  EXPECT_EQ(names_of(*sharded).size(), 4);
}

// Units that the cut will replace can be neither the source nor the target of an explicit prefetch.
TEST(AutoUnits, AreNotPrefetchedByListsBeforeTheyAreMade) {
  BranchedNet net;
  Options plain;
  plain.communicator = one_rank();
  fully_shard(net->b, plain);
  auto sharded = fully_shard(net, automatic(plain.communicator));
  expect_error([&] { sharded->set_modules_to_forward_prefetch(*net->b, {*net}); },
               {"cannot be set before its units are made"});
  expect_error([&] { sharded->set_modules_to_backward_prefetch(*net, {*net->b}); },
               {"cannot be set before its units are made"});
  sharded->cut_units();
  sharded->set_modules_to_forward_prefetch(*net->b, {*net});
}

TEST(AutoUnits, DifferentOptionsOnRanks) {
  run_ranks(2, [](std::shared_ptr<Communicator> communicator) {
    BranchedNet net;
    auto sharded = fully_shard(net, automatic(communicator, 100 + communicator->rank()));
    expect_error([&] { net->loss(input()); }, {"auto_units target_bytes 100", "auto_units target_bytes 101"});
  });
}

// The shards keep all values, whichever collective of the cut fails.
TEST(AutoUnits, AFailureWhileCuttingLosesNothing) {
  for (int64_t index : {1, 2, 6, 12}) {
    run_ranks(2,
              [&](std::shared_ptr<Communicator> communicator) {
                BranchedNet net = testing::seeded([] { return BranchedNet(); });
                auto want = weights_of(*net);
                auto faulty = std::make_shared<comm::FaultyCommunicator>(
                    communicator, std::vector<comm::Fault>{{.index = index, .what = comm::Fault::What::kFailIssue}});
                auto sharded = fully_shard(net, automatic(communicator->rank() == 1 ? faulty : communicator));
                expect_error([&] { sharded->cut_units(); }, {communicator->rank() == 1 ? "injected fault" : "rank 1"});
                std::map<std::string, int64_t> seen;
                for (const ShardSlice& slice : sharded->shard_slices()) {
                  EXPECT_TRUE(torch::equal(slice.data, want.at(slice.fqn).reshape(-1).slice(0, slice.begin, slice.end)))
                      << slice.fqn << " after collective " << index;
                  seen[slice.fqn] += 1;
                }
                EXPECT_EQ(seen.size(), want.size());
                auto slices = sharded->shard_slices();
                auto leaves = sharded->named_parameters();
                ASSERT_EQ(slices.size(), leaves.size());
                for (size_t i = 0; i < slices.size(); ++i) EXPECT_TRUE(leaves[i].second.is_set_to(slices[i].data));
                // Both the units that were made and those that were not still exist.
                for (auto& entry : net->named_parameters()) expect_error([&] { (void)entry.value().sum(); }, {"rank"});
              },
              {std::chrono::seconds(1)});
  }
}

}  // namespace
}  // namespace fsdp
