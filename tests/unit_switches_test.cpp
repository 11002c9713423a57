// Switches of single modules: which units reduce, by what they divide, and when they are gathered and released.
#include <gmock/gmock.h>

#include <atomic>

#include "engine/engine.h"
#include "fsdp/fully_shard.h"
#include "support/nets/tiny_lm.h"
#include "support/ranks/thread_ranks.h"
#include "support/training/sharding.h"

namespace fsdp::unit_switches_test {
namespace {

using testing::batch_of;
using testing::block_options;
using testing::errors_of_ranks;
using testing::expect_error;
using testing::expect_same;
using ::testing::HasSubstr;
using testing::make_tiny_lm;
using testing::run_ranks;
using testing::TinyLM;
using testing::weights_of;
using enum ShardingStrategy;

using Ranks = std::shared_ptr<Communicator>;
using Tensors = std::map<std::string, torch::Tensor>;

constexpr int kPasses = 3;

struct Case {
  int ranks;
  ShardingStrategy strategy;
  ShardCut cut;
  bool strict;
};

std::string name_of(const ::testing::TestParamInfo<Case>& info) {
  const Case& c = info.param;
  return c10::str(to_string(c.strategy), "_", c.ranks, "ranks", c.cut == ShardCut::kRows ? "_rows" : "",
                  c.strict ? "_strict" : "");
}

// A sharded model, whose units are three blocks and the root.
struct Model {
  Model(const Ranks& world, const Case& c) : net(make_tiny_lm({}, at::kDouble)) {
    Options options = block_options(world, c.strategy);
    options.shard_cut = c.cut;
    sharded = c.strict ? testing::shard_strictly(*net, options) : fully_shard(*net, options);
    rank = world->rank();
  }
  torch::nn::Module& block(int i) { return *net->blocks[static_cast<size_t>(i)]; }
  torch::Tensor loss(int pass) { return net->loss(batch_of(rank, pass)); }
  EngineStats stats() const { return sharded->diagnostics().stats(); }

  TinyLM net;
  std::shared_ptr<ShardedModule> sharded;
  int rank;
};

// Returns this rank's parts of the gradients after kPasses passes. `before`: called before each pass.
Tensors gradients_after(const Ranks& world, const Case& c, const std::function<void(Model&, int pass)>& before) {
  Model model(world, c);
  for (int pass = 0; pass < kPasses; ++pass) {
    before(model, pass);
    model.loss(pass).backward();
  }
  EXPECT_EQ(model.stats().gradient_buffer_bytes, 0);
  Tensors gradients;
  for (const auto& [name, leaf] : model.sharded->named_parameters()) {
    if (leaf.numel() > 0) gradients[name] = leaf.grad().clone();
  }
  return gradients;
}

bool is_of_block(const std::string& name, int block) { return name.starts_with(c10::str("blocks.", block, ".")); }

// Expects of each gradient the bits that it has in one of two other runs.
void expect_from(const Tensors& got, const std::function<const Tensors&(const std::string& name)>& run) {
  for (const auto& [name, gradient] : got) {
    EXPECT_TRUE(testing::same_bits(gradient, run(name).at(name))) << name;
  }
}

class Switches : public ::testing::TestWithParam<Case> {};

TEST_P(Switches, OneUnitAccumulatesWhileOthersReduce) {
  const Case& c = GetParam();
  run_ranks(c.ranks, [&](Ranks world) {
    const Tensors each = gradients_after(world, c, [](Model&, int) {});
    const Tensors later = gradients_after(
        world, c, [](Model& model, int pass) { model.sharded->set_requires_gradient_sync(pass == kPasses - 1); });
    const Tensors mixed = gradients_after(world, c, [](Model& model, int pass) {
      const bool on = pass == kPasses - 1;
      model.sharded->set_requires_gradient_sync(model.block(1), on);
    });
    expect_from(mixed, [&](const std::string& name) -> const Tensors& { return is_of_block(name, 1) ? later : each; });
    // The whole tree, but for one block.
    const Tensors others = gradients_after(world, c, [](Model& model, int pass) {
      model.sharded->set_requires_gradient_sync(*model.net, pass == kPasses - 1);
      model.sharded->set_requires_gradient_sync(model.block(2), true);
    });
    expect_from(others, [&](const std::string& name) -> const Tensors& { return is_of_block(name, 2) ? each : later; });
    // Without recursion, the root alone.
    const Tensors root = gradients_after(world, c, [](Model& model, int pass) {
      model.sharded->set_requires_gradient_sync(*model.net, pass == kPasses - 1, /*recurse=*/false);
    });
    expect_from(root,
                [&](const std::string& name) -> const Tensors& { return name.starts_with("blocks.") ? each : later; });
    // Each block at other passes; all equal one process.
    const Tensors turns = gradients_after(world, c, [](Model& model, int pass) {
      for (int i = 0; i < 3; ++i) model.sharded->set_requires_gradient_sync(model.block(i), pass != i || pass == 2);
    });
    for (const auto& [name, gradient] : turns) EXPECT_TRUE(torch::allclose(gradient, each.at(name), 1e-11, 1e-13));
  });
}

TEST_P(Switches, ScopesHoldForAllUnits) {
  const Case& c = GetParam();
  run_ranks(c.ranks, [&](Ranks world) {
    Model model(world, c);
    model.sharded->set_requires_gradient_sync(model.block(0), true);
    const auto reductions = [&] { return model.stats().reduce_scatters + model.stats().all_reduces; };
    {
      auto no_sync = model.sharded->no_sync();
      EXPECT_FALSE(model.sharded->backward_options().requires_gradient_sync);
      model.loss(0).backward();
    }
    EXPECT_TRUE(model.sharded->backward_options().requires_gradient_sync);
    model.sharded->backward(model.loss(1), {.requires_gradient_sync = false});
    EXPECT_EQ(reductions(), 0);
    model.loss(2).backward();
    EXPECT_GE(reductions(), 4);
  });
}

TEST_P(Switches, DivideByAFactorOfTheirOwn) {
  const Case& c = GetParam();
  run_ranks(c.ranks, [&](Ranks world) {
    const auto at_first = [](const std::function<void(Model&)>& change) {
      return [change](Model& model, int pass) {
        if (pass == 0) change(model);
      };
    };
    const Tensors mean = gradients_after(world, c, at_first([](Model&) {}));
    const Tensors own =
        gradients_after(world, c, at_first([&](Model& model) {
                          model.sharded->set_gradient_divide_factor(model.block(1), 4.0 * world->size());
                        }));
    for (const auto& [name, gradient] : own) {
      EXPECT_TRUE(torch::equal(gradient * (is_of_block(name, 1) ? 4 : 1), mean.at(name))) << name;
    }
    const Tensors again = gradients_after(world, c, at_first([&](Model& model) {
                                            model.sharded->set_gradient_divide_factor(model.block(1), 4.0);
                                            model.sharded->set_gradient_divide_factor(std::nullopt);
                                          }));
    expect_same(again, mean);
  });
}

// Trains with switches that change at each step; the weights must be those of training without switches, to the bit.
void expect_trains_as_without(const Case& c, const std::function<void(Model&, int step)>& change) {
  run_ranks(c.ranks, [&](Ranks world) {
    const auto train = [&](const std::function<void(Model&, int)>& change_before) {
      Model model(world, c);
      for (int step = 0; step < 5; ++step) {
        change_before(model, step);
        model.sharded->zero_grad();
        model.loss(step).backward();
        if (step == 2) model.loss(step + 10).backward();  // twice without a step of the optimizer between
        testing::descend(model.sharded->parameters());
        if (step == 3) {
          torch::NoGradGuard no_grad;
          model.loss(step);
        }
      }
      return weights_of(*model.sharded);
    };
    expect_same(train(change), train([](Model&, int) {}));
  });
}

TEST_P(Switches, ReshardingAfterBackwardChangesNoResult) {
  expect_trains_as_without(GetParam(), [](Model& model, int step) {
    if (step == 0) model.sharded->set_reshard_after_backward(false);
    if (step == 2) model.sharded->set_reshard_after_backward(model.block(0), true);
    if (step == 3) model.sharded->set_reshard_after_backward(*model.net, true);
    if (step == 4) model.sharded->set_reshard_after_backward(model.block(2), false);
  });
}

TEST_P(Switches, ReshardingAfterForwardChangesNoResult) {
  if (!reshards_after_forward(GetParam().strategy)) {
    run_ranks(GetParam().ranks, [&](Ranks world) {
      Model model(world, GetParam());
      expect_error([&] { model.sharded->set_reshard_after_forward(true); },
                   {"set_reshard_after_forward", "unit '", to_string(GetParam().strategy)});
    });
    return;
  }
  expect_trains_as_without(GetParam(), [](Model& model, int step) {
    if (step == 0) model.sharded->set_reshard_after_forward(true);
    if (step == 1) model.sharded->set_reshard_after_forward(model.block(1), false);
    if (step == 2) model.sharded->set_reshard_after_forward(false);
    if (step == 3) model.sharded->set_reshard_after_forward(*model.net, true, /*recurse=*/false);
  });
}

TEST_P(Switches, UnshardingInBackwardChangesNoResult) {
  expect_trains_as_without(GetParam(), [](Model& model, int step) {
    model.sharded->set_unshard_in_backward(model.block(step % 3), step % 2 == 1);
  });
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (ShardCut cut : {ShardCut::kFlat, ShardCut::kRows}) {
    for (int ranks : {1, 2, 3}) all.push_back({ranks, kFullShard, cut, (ranks == 2) == (cut == ShardCut::kRows)});
    all.push_back({2, kShardGradOp, cut, false});
    all.push_back({4, kHybridShard, cut, cut == ShardCut::kRows});
  }
  all.push_back({3, kNoShard, ShardCut::kFlat, true});
  all.push_back({4, kHybridShardZero2, ShardCut::kFlat, true});
  return all;
}
INSTANTIATE_TEST_SUITE_P(All, Switches, ::testing::ValuesIn(cases()), name_of);

// ---------------------------------------------------------------- replicas

TEST(SwitchesOfReplicas, OneUnitIsAllReducedLater) {
  const Case c{4, kHybridShard, ShardCut::kFlat, false};
  run_ranks(4, [&](Ranks world) {
    const Tensors each = gradients_after(world, c, [](Model&, int) {});
    const Tensors later = gradients_after(
        world, c, [](Model& model, int pass) { model.sharded->set_requires_all_reduce(pass == kPasses - 1); });
    const Tensors mixed = gradients_after(world, c, [](Model& model, int pass) {
      model.sharded->set_requires_all_reduce(model.block(1), pass == kPasses - 1);
    });
    expect_from(mixed, [&](const std::string& name) -> const Tensors& { return is_of_block(name, 1) ? later : each; });
    // Synchronization sets both.
    const Tensors both = gradients_after(world, c, [](Model& model, int) {
      model.sharded->set_requires_all_reduce(model.block(1), false);
      model.sharded->set_requires_gradient_sync(model.block(1), true);
    });
    expect_from(both, [&](const std::string&) -> const Tensors& { return each; });
  });
}

// ---------------------------------------------------------------- what is gathered, and when

const Case kPlain{2, kFullShard, ShardCut::kFlat, false};

// Returns how many all-gathers `body` issues.
int64_t gathers(Model& model, const std::function<void()>& body) {
  const int64_t before = model.stats().all_gathers;
  body();
  return model.stats().all_gathers - before;
}

// Returns the all-gathers of one step's forward, and of its backward.
std::pair<int64_t, int64_t> gathers_of_step(Model& model) {
  torch::Tensor loss;
  const int64_t forward = gathers(model, [&] { loss = model.loss(0); });
  return {forward, gathers(model, [&] { loss.backward(); })};
}

using Counts = std::pair<int64_t, int64_t>;

// By default the root and the last block stay gathered from forward to backward.
TEST(ReshardAfterForwardSwitch, TakesEffectFromTheNextForward) {
  run_ranks(2, [](Ranks world) {
    Model model(world, kPlain);
    EXPECT_EQ(gathers_of_step(model), Counts(4, 2));
    EXPECT_EQ(gathers_of_step(model), Counts(4, 2));
    model.sharded->set_reshard_after_forward(model.block(0), false);
    EXPECT_EQ(gathers_of_step(model), Counts(4, 1));
    model.sharded->set_reshard_after_forward(false);
    EXPECT_EQ(gathers_of_step(model), Counts(4, 0));
    EXPECT_EQ(model.stats().gathered_units, 0);
    for (int i : {0, 1}) model.sharded->set_reshard_after_forward(model.block(i), true);
    gathers_of_step(model);  // backward's order is new to the engine
    EXPECT_EQ(gathers_of_step(model), Counts(4, 1)) << "the last one that does not stay on purpose stays";
    model.sharded->set_reshard_after_forward(*model.net, true);
    EXPECT_EQ(gathers_of_step(model).first, 4);
    model.sharded->set_reshard_after_forward(*model.net, false, /*recurse=*/false);
    EXPECT_EQ(gathers_of_step(model), Counts(4, 2));
  });
}

// As when fully_shard is given the number.
TEST(ReshardAfterForwardSwitch, TakesASmallerGroup) {
  for (const ShardingStrategy strategy : {kFullShard, kHybridShard}) {
    const int ranks = strategy == kFullShard ? 4 : 8;
    run_ranks(ranks, [&](Ranks world) {
      const Case c{ranks, strategy, ShardCut::kFlat, false};
      const auto train = [&](bool smaller) {
        Model model(world, c);
        for (int step = 0; step < 3; ++step) {
          if (smaller && step == 1) model.sharded->set_reshard_after_forward(2);
          if (smaller && step == 2) model.sharded->set_reshard_after_forward(model.block(1), true);
          model.sharded->zero_grad();
          model.loss(step).backward();
          testing::descend(model.sharded->parameters());
          if (smaller && step > 0) {
            for (const auto& unit : model.sharded->engine().units()) {
              base::MutexLock lock(unit->mutex);
              EXPECT_EQ(unit->buffers.park_group() != nullptr, step == 1 || unit->name() != "blocks.1") << step;
            }
          }
        }
        return weights_of(*model.sharded);
      };
      expect_same(train(true), train(false));
      Model model(world, c);
      for (int group : {0, 1, 3, 4}) {
        expect_error(
            [&] { model.sharded->set_reshard_after_forward(model.block(0), group); },
            {"set_reshard_after_forward", "unit 'blocks.0'", c10::str(group, " must divide the 4 ranks").c_str()});
      }
    });
  }
}

TEST(ReshardAfterBackwardSwitch, KeepsUnitsUntilTheirShardsAreWritten) {
  for (ShardCut cut : {ShardCut::kFlat, ShardCut::kRows}) {
    run_ranks(3, [&](Ranks world) {
      Model model(world, {3, kFullShard, cut, false});
      gathers_of_step(model);
      model.sharded->set_reshard_after_backward(false);
      EXPECT_EQ(gathers_of_step(model).first, 4);
      EXPECT_EQ(model.stats().gathered_units, 4);
      EXPECT_EQ(gathers_of_step(model), Counts(0, 2)) << "forward still reshards";
      EXPECT_EQ(model.stats().gathered_units, 4);
      testing::descend(model.sharded->parameters());
      const int64_t prefetches = model.stats().prefetches;
      EXPECT_EQ(gathers_of_step(model).first, 4) << "the shards were written";
      EXPECT_GT(model.stats().prefetches, prefetches + 2) << "and are gathered ahead";
      model.sharded->reshard();
      EXPECT_EQ(model.stats().gathered_units, 0);
      EXPECT_EQ(gathers_of_step(model).first, 4);
      model.sharded->set_reshard_after_backward(model.block(1), true);
      gathers_of_step(model);
      EXPECT_EQ(model.stats().gathered_units, 3);
      EXPECT_EQ(gathers_of_step(model).first, 1);
      model.sharded->set_reshard_after_backward(true);
      gathers_of_step(model);
      EXPECT_EQ(model.stats().gathered_units, 0);
    });
  }
}

TEST(UnshardInBackwardSwitch, EndsGathersAheadAndNotThoseOfUses) {
  run_ranks(2, [](Ranks world) {
    Model model(world, kPlain);
    gathers_of_step(model);
    const auto prefetches = [&] {
      const torch::Tensor loss = model.loss(0);
      const int64_t before = model.stats().prefetches;
      loss.backward();
      return model.stats().prefetches - before;
    };
    EXPECT_EQ(prefetches(), 2);
    model.sharded->set_unshard_in_backward(model.block(0), false);
    EXPECT_EQ(prefetches(), 1);
    EXPECT_EQ(gathers_of_step(model), Counts(4, 2)) << "its weights are needed";
    model.sharded->set_unshard_in_backward(model.block(0), true);
    EXPECT_EQ(prefetches(), 2);
  });
}

// ---------------------------------------------------------------- refusals

TEST(SwitchesAreRefused, WithoutUnits) {
  run_ranks(2, [](Ranks world) {
    Model model(world, kPlain);
    const torch::nn::Module& linear = *model.net->head;
    expect_error(
        [&] { model.sharded->set_requires_gradient_sync(linear, false); },
        {"set_requires_gradient_sync", "no unit was made for the module of class", "or for a module below it"});
    expect_error([&] { model.sharded->set_gradient_divide_factor(linear, 2.0); },
                 {"set_gradient_divide_factor", "no unit was made for"});
    expect_error([&] { model.sharded->set_gradient_divide_factor(model.block(0), -2.0); }, {"-2", "must be positive"});
    expect_error([&] { model.sharded->set_requires_all_reduce(*model.net->blocks, false, /*recurse=*/false); },
                 {"no unit was made for"});
    model.sharded->set_requires_all_reduce(*model.net->blocks, false);  // the units below the list
  });
}

TEST(SwitchesAreRefused, BeforeAutomaticUnitsAreMade) {
  run_ranks(2, [](Ranks world) {
    auto net = make_tiny_lm({}, at::kDouble);
    Options options;
    options.communicator = world;
    options.auto_units = AutoUnits{.target_bytes = 512};
    auto sharded = fully_shard(*net, options);
    expect_error([&] { sharded->set_reshard_after_backward(false); }, {"auto_units", "cut_units"});
    expect_error([&] { sharded->set_requires_gradient_sync(*net, false); }, {"auto_units", "cut_units"});
    expect_error([&] { sharded->set_requires_gradient_sync(*net->blocks[0], false); }, {"no unit", "auto_units"});
    net->loss(batch_of(world->rank(), 0)).backward();
    sharded->set_requires_gradient_sync(*net, false);
    const int64_t before = sharded->diagnostics().stats().reduce_scatters;
    net->loss(batch_of(world->rank(), 1)).backward();
    EXPECT_EQ(sharded->diagnostics().stats().reduce_scatters, before);
  });
}

TEST(SwitchesAreRefused, WhileBackwardRuns) {
  run_ranks(2, [](Ranks world) {
    Model model(world, kPlain);
    int called = 0;
    torch::Tensor loss = model.loss(0);
    loss.register_hook([&](const torch::Tensor&) {
      expect_error([&] { model.sharded->set_requires_gradient_sync(model.block(0), false); }, {"while backward runs"});
      expect_error([&] { model.sharded->set_reshard_after_forward(false); }, {"while backward runs"});
      ++called;
    });
    loss.backward();
    EXPECT_EQ(called, 1);
  });
}

// ---------------------------------------------------------------- ranks that differ

// Returns the errors of two ranks, of which the first alone makes a call after the first step.
std::vector<std::string> errors_of_difference(const std::function<void(Model&)>& call) {
  return errors_of_ranks(2, [&](Ranks world) {
    Model model(world, kPlain);
    model.loss(0).backward();
    if (world->rank() == 0) call(model);
    for (int step = 0; step < 3; ++step) model.loss(step).backward();
  });
}

TEST(RanksThatSwitchDifferently, GetAnError) {
  const auto expect_names = [](const std::function<void(Model&)>& call, const std::string& word) {
    for (const std::string& error : errors_of_difference(call)) EXPECT_THAT(error, HasSubstr(word));
  };
  expect_names([](Model& model) { model.sharded->set_requires_gradient_sync(model.block(1), false); }, "blocks.1");
  expect_names([](Model& model) { model.sharded->set_gradient_divide_factor(model.block(1), 3.0); }, "blocks.1");
  // The rank compares how it shards, while the other one gathers.
  expect_names([](Model& model) { model.sharded->set_reshard_after_backward(model.block(1), false); },
               "digest of the sharding");
  expect_names([](Model& model) { model.sharded->set_reshard_after_forward(false); }, "digest of the sharding");
}

TEST(RanksThatSwitchDifferently, AreNamedWithTheDifference) {
  const std::vector<std::string> errors = errors_of_ranks(2, [&](Ranks world) {
    Model model(world, kPlain);
    model.sharded->set_reshard_after_backward(model.block(1), world->rank() == 0);
    model.loss(0).backward();
  });
  for (const std::string& error : errors) {
    EXPECT_THAT(error, ::testing::AllOf(HasSubstr("blocks.1"), HasSubstr("reshard_after_backward false")));
  }
}

}  // namespace
}  // namespace fsdp::unit_switches_test
