// Tests how much is gathered at a time and how often, with nested units, strategies and options of single units.
#include "engine/engine.h"
#include "support/ranks/thread_ranks.h"
#include "support/training/sharding.h"

namespace fsdp {
namespace {

using testing::run_ranks;
using testing::weights_of;

// A tree in which each node has a layer that runs before its children and a parameter that is used after them.
struct NodeImpl : torch::nn::Module {
  NodeImpl(int depth, int fan_out) {
    before = register_module("before", torch::nn::Linear(5, 5));
    for (int i = 0; depth > 0 && i < fan_out; ++i) {
      children.push_back(register_module("c" + std::to_string(i), std::make_shared<NodeImpl>(depth - 1, fan_out)));
    }
    after = register_parameter("after", torch::ones({5}));
  }
  torch::Tensor forward(torch::Tensor x) {
    x = torch::tanh(before(x));
    for (auto& child : children) x = x + child->forward(x);
    return x * after;
  }
  torch::nn::Linear before{nullptr};
  std::vector<std::shared_ptr<NodeImpl>> children;
  torch::Tensor after;
};

constexpr int kRanks = 2;
torch::Tensor input(int rank) { return torch::arange(15).to(torch::kDouble).view({3, 5}) / (10 + rank); }

std::shared_ptr<NodeImpl> make_tree(int depth, int fan_out) {
  return testing::seeded([&] {
    auto tree = std::make_shared<NodeImpl>(depth, fan_out);
    tree->to(torch::kDouble);
    return tree;
  });
}

Options options_for(const std::shared_ptr<Communicator>& communicator) {
  Options options;
  options.communicator = communicator;
  options.auto_wrap_policy = module_class_policy<NodeImpl>();
  return options;
}

int64_t unsharded_bytes(const engine::Unit& unit) {
  int64_t bytes = 0;
  for (const auto& flat : unit.flat_parameters()) {
    bytes += flat->layout().padded_numel() * c10::elementSize(flat->dtypes().compute);
  }
  return bytes;
}

void expect_gradients(ShardedModule& sharded, const NodeImpl& plain) {
  torch::NoGradGuard no_grad;
  for (const auto& [name, leaf] : sharded.named_parameters()) {
    if (leaf.numel() > 0) leaf.data().copy_(leaf.grad());
  }
  auto got = weights_of(sharded);
  for (const auto& [name, want] : testing::gradients_of(plain)) {
    EXPECT_TRUE(torch::allclose(got.at(name), want, 1e-10, 1e-12)) << name;
  }
}

std::shared_ptr<NodeImpl> plain_gradients(int depth, int fan_out) {
  auto plain = make_tree(depth, fan_out);
  for (int rank = 0; rank < kRanks; ++rank) (plain->forward(input(rank)).pow(2).sum() / kRanks).backward();
  return plain;
}

// Nests units up to four levels below the root. Ancestors stay gathered while a descendant runs, because execution may
// return to them.
TEST(Residency, DeepNesting) {
  for (auto [depth, fan_out] : {std::pair{4, 1}, std::pair{3, 2}}) {
    SCOPED_TRACE(depth);
    auto plain = plain_gradients(depth, fan_out);
    run_ranks(kRanks, [&, depth = depth, fan_out = fan_out](std::shared_ptr<Communicator> communicator) {
      auto tree = make_tree(depth, fan_out);
      auto sharded = fully_shard(*tree, options_for(communicator));
      int64_t units = static_cast<int64_t>(sharded->engine().units().size());
      EXPECT_EQ(units, depth == 4 ? 5 : 15);
      tree->forward(input(communicator->rank())).pow(2).sum().backward();
      EngineStats stats = sharded->diagnostics().stats();
      EXPECT_EQ(stats.peak_gathered_units, depth + 1);
      EXPECT_LE(stats.peak_gathered_bytes, (depth + 1) * unsharded_bytes(*sharded->engine().units().front()));
      EXPECT_EQ(stats.gathered_bytes, 0);
      EXPECT_EQ(stats.gradient_buffer_bytes, 0);
      expect_gradients(*sharded, *plain);
    });
  }
}

struct Modes {
  const char* name;
  std::vector<ShardingStrategy> strategies;  // of units c0, c1, c2 below the root
  std::vector<std::optional<bool>> reshard;
  int64_t kept;         // units that stay gathered after forward, the root included
  int64_t all_gathers;  // in one step
};
class MixedUnits : public ::testing::TestWithParam<Modes> {};
constexpr auto kFull = ShardingStrategy::kFullShard;
constexpr auto kGradOp = ShardingStrategy::kShardGradOp;
constexpr auto kNone = ShardingStrategy::kNoShard;
INSTANTIATE_TEST_SUITE_P(All, MixedUnits,
                         ::testing::Values(Modes{"full", {kFull, kFull, kFull}, {{}, {}, {}}, 1, 6},
                                           Modes{"grad_op", {kGradOp, kGradOp, kGradOp}, {{}, {}, {}}, 4, 4},
                                           Modes{"mixed", {kFull, kGradOp, kFull}, {{}, {}, {}}, 2, 5},
                                           Modes{"kept", {kFull, kFull, kFull}, {{}, false, {}}, 2, 5},
                                           Modes{"resharded", {kFull, kFull, kFull}, {true, true, true}, 1, 6},
                                           Modes{"replicated", {kNone, kFull, kGradOp}, {{}, {}, {}}, 3, 4}),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(MixedUnits, GatherAsOftenAsTheyShould) {
  const Modes& modes = GetParam();
  auto plain = plain_gradients(1, 3);
  run_ranks(kRanks, [&](std::shared_ptr<Communicator> communicator) {
    auto tree = make_tree(1, 3);
    Options options = options_for(communicator);
    options.auto_wrap_policy = {};
    for (int i = 0; i < 3; ++i) {
      options.sharding_strategy = modes.strategies[i];
      options.reshard_after_forward = modes.reshard[i];
      fully_shard(*tree->children[i], options);
    }
    options.sharding_strategy = kFull;
    options.reshard_after_forward.reset();
    auto sharded = fully_shard(*tree, options);
    for (int step = 0; step < 2; ++step) {
      sharded->zero_grad();
      EngineStats before = sharded->diagnostics().stats();
      torch::Tensor loss = tree->forward(input(communicator->rank())).pow(2).sum();
      // The last two units of forward may stay gathered as well, until the next unit needs room.
      EXPECT_GE(sharded->diagnostics().stats().gathered_units, modes.kept);
      EXPECT_LE(sharded->diagnostics().stats().gathered_units, modes.kept + 2);
      loss.backward();
      EngineStats after = sharded->diagnostics().stats();
      EXPECT_LE(after.all_gathers - before.all_gathers, modes.all_gathers + 1);
      EXPECT_GE(after.all_gathers - before.all_gathers, modes.all_gathers - 1);
      int64_t replicated = std::count(modes.strategies.begin(), modes.strategies.end(), kNone);
      EXPECT_EQ(after.reduce_scatters - before.reduce_scatters, 4 - replicated);
      EXPECT_EQ(after.all_reduces - before.all_reduces, replicated);
      EXPECT_EQ(after.gathered_units, 0);
    }
    expect_gradients(*sharded, *plain);
  });
}

TEST(Residency, RootMayBeResharded) {
  run_ranks(kRanks, [](std::shared_ptr<Communicator> communicator) {
    auto tree = make_tree(1, 3);
    Options options = options_for(communicator);
    options.reshard_after_forward = true;
    auto sharded = fully_shard(*tree, options);
    torch::Tensor loss = tree->forward(input(0)).pow(2).sum();
    EXPECT_LE(sharded->diagnostics().stats().peak_gathered_units, 2);
    loss.backward();
    EXPECT_EQ(sharded->diagnostics().stats().gathered_units, 0);
  });
}

TEST(Residency, UnshardAndReshardByHand) {
  run_ranks(kRanks, [](std::shared_ptr<Communicator> communicator) {
    auto tree = make_tree(1, 3), plain = make_tree(1, 3);
    auto sharded = fully_shard(*tree, options_for(communicator));
    sharded->unshard();
    sharded->reshard();
    EXPECT_EQ(sharded->diagnostics().stats().gathered_units, 0);
    EXPECT_EQ(sharded->diagnostics().stats().gathered_bytes, 0);
    sharded->reshard();
    sharded->unshard();
    sharded->unshard();
    EXPECT_TRUE(torch::equal(tree->forward(input(0)), plain->forward(input(0))));
    sharded->reshard();
    EXPECT_TRUE(torch::equal(tree->forward(input(0)), plain->forward(input(0))));
  });
}

TEST(Residency, UnshardGathersEveryUnit) {
  auto tree = make_tree(1, 3);
  auto sharded = fully_shard(*tree, options_for(testing::one_rank()));
  sharded->unshard();
  EXPECT_EQ(sharded->diagnostics().stats().gathered_units, 4);
  for (const torch::Tensor& parameter : tree->parameters()) EXPECT_NO_THROW((void)parameter.data_ptr());
}

// The memory of the engine does not grow from step to step.
TEST(Residency, NoAllocationAfterTheSecondStep) {
  run_ranks(kRanks, [](std::shared_ptr<Communicator> communicator) {
    auto tree = make_tree(2, 2);
    auto sharded = fully_shard(*tree, options_for(communicator));
    std::vector<int64_t> peaks;
    for (int step = 0; step < 4; ++step) {
      sharded->zero_grad();
      tree->forward(input(step)).pow(2).sum().backward();
      EngineStats stats = sharded->diagnostics().stats();
      peaks.push_back(stats.peak_gathered_bytes + stats.peak_gradient_buffer_bytes);
    }
    EXPECT_EQ(peaks.back(), peaks[1]) << "from the second step on units are gathered ahead";
  });
}

}  // namespace
}  // namespace fsdp
