// Gradient accumulation with communication, without it, and with it in the shard group only.
#include <array>

#include "engine/engine.h"
#include "fsdp/fully_shard.h"
#include "support/nets/tiny_lm.h"
#include "support/ranks/thread_ranks.h"
#include "support/training/sharding.h"

namespace fsdp {
namespace {

using testing::batch_of;
using testing::block_options;
using testing::expect_error;
using testing::make_tiny_lm;
using testing::run_ranks;
using testing::TinyLM;
using testing::weights_of;
using enum ShardingStrategy;

using Ranks = std::shared_ptr<Communicator>;
using Weights = std::map<std::string, torch::Tensor>;

constexpr int kSteps = 3;
constexpr int kPasses = 3;

// The reference: one process trains on the mean loss over all ranks' batches, with kPasses passes in each step.
Weights train_alone(int world_size) {
  TinyLM model = make_tiny_lm({}, at::kDouble);
  for (int step = 0; step < kSteps; ++step) {
    model->zero_grad();
    for (int pass = 0; pass < kPasses; ++pass) {
      for (int rank = 0; rank < world_size; ++rank) {
        (model->loss(batch_of(rank, step * kPasses + pass)) / world_size).backward();
      }
    }
    testing::descend(model->parameters());
  }
  return weights_of(*model);
}

void expect_close(const Weights& got, const Weights& want) {
  ASSERT_EQ(got.size(), want.size());
  for (const auto& [name, tensor] : want) EXPECT_TRUE(torch::allclose(got.at(name), tensor, 1e-11, 1e-13)) << name;
}

// The way in which the passes of a step are run.
enum class Way { kSyncEach, kNoSync, kPerCall, kSwitch, kReplicasLater, kWaitLater, kNoSyncThenReplicas, kAfterwards };
const char* to_string(Way way) {
  const char* names[] = {
      "sync_each", "no_sync", "per_call", "switch", "replicas", "wait_later", "no_sync_then_replicas", "afterwards"};
  return names[static_cast<int>(way)];
}

BackwardOptions options_of(Way way, int pass) {
  const bool last = pass == kPasses - 1;
  switch (way) {
    case Way::kSyncEach:
      return {};
    case Way::kReplicasLater:
      return {.requires_all_reduce = last};
    case Way::kWaitLater:
      return {.is_last_backward = last};
    case Way::kAfterwards:
      return {.requires_gradient_sync = false};
    case Way::kNoSyncThenReplicas:
      return {.requires_gradient_sync = pass > 0, .requires_all_reduce = last};
    default:
      return {.requires_gradient_sync = last};
  }
}

void run_pass(Way way, int pass, ShardedModule& sharded, TinyLM& model, int rank, int step) {
  const BackwardOptions options = options_of(way, pass);
  auto loss = [&] { return model->loss(batch_of(rank, step * kPasses + pass)); };
  if (way == Way::kNoSync && !options.requires_gradient_sync) {
    auto no_sync = sharded.no_sync();
    loss().backward();
  } else if (way == Way::kSwitch) {
    sharded.set_requires_gradient_sync(options.requires_gradient_sync);
    loss().backward();
  } else {
    sharded.backward(loss(), options);
  }
  if (way == Way::kAfterwards && pass == kPasses - 1) sharded.reduce_gradients();
}

struct Case {
  int world_size;
  ShardingStrategy strategy;
  bool use_orig_params;
  Way way;
};

std::string case_name(const ::testing::TestParamInfo<Case>& info) {
  const Case& c = info.param;
  return c10::str(to_string(c.strategy), "_", c.world_size, "ranks_", c.use_orig_params ? "orig_" : "flat_",
                  to_string(c.way));
}

// Checks the number of reductions that a step issues. Passes that accumulate without communication add none.
void expect_counts(const Case& c, const ShardedModule& sharded, const EngineStats& before, const EngineStats& after) {
  const int64_t units = static_cast<int64_t>(sharded.engine().units().size());
  const engine::ShardGroups& groups = sharded.engine().units().front()->groups();
  const bool each = c.way == Way::kSyncEach || c.way == Way::kWaitLater;
  const bool scatters_each = each || c.way == Way::kReplicasLater;
  const int64_t scatters = scatters_each ? kPasses : c.way == Way::kNoSyncThenReplicas ? kPasses - 1 : 1;
  EXPECT_EQ(after.reduce_scatters - before.reduce_scatters, groups.shard ? scatters * units : 0);
  const int64_t all_reduces = each ? kPasses : 1;
  EXPECT_EQ(after.all_reduces - before.all_reduces, groups.replicate ? all_reduces * units : 0);
  EXPECT_EQ(after.gradient_buffer_bytes, 0);
}

class Accumulation : public ::testing::TestWithParam<Case> {};

TEST_P(Accumulation, EqualsSingleProcess) {
  const Case& c = GetParam();
  Weights want = train_alone(c.world_size);
  run_ranks(c.world_size, [&](Ranks world) {
    TinyLM model = make_tiny_lm({}, at::kDouble);
    auto sharded = fully_shard(*model, block_options(world, c.strategy, c.use_orig_params));
    for (int step = 0; step < kSteps; ++step) {
      EngineStats before = sharded->diagnostics().stats();
      sharded->zero_grad();
      for (int pass = 0; pass < kPasses; ++pass) run_pass(c.way, pass, *sharded, model, world->rank(), step);
      expect_counts(c, *sharded, before, sharded->diagnostics().stats());
      testing::descend(sharded->parameters());
    }
    expect_close(weights_of(*sharded), want);
  });
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (ShardingStrategy strategy : {kFullShard, kShardGradOp, kNoShard, kHybridShard, kHybridShardZero2}) {
    for (Way way : {Way::kSyncEach, Way::kNoSync, Way::kPerCall, Way::kSwitch, Way::kReplicasLater, Way::kWaitLater,
                    Way::kNoSyncThenReplicas, Way::kAfterwards}) {
      for (int world_size : {1, 2, 4}) {
        cases.push_back({world_size, strategy, (static_cast<int>(way) + world_size) % 2 == 0, way});
      }
    }
    cases.push_back({8, strategy, true, Way::kNoSync});
    if (!is_hybrid(strategy)) {
      cases.push_back({3, strategy, false, Way::kNoSync});
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(All, Accumulation, ::testing::ValuesIn(all_cases()), case_name);

// ---------------------------------------------------------------- what stays in memory

TEST(NoSync, KeepsParametersGatheredThatAreNotResharded) {
  for (ShardingStrategy strategy : {kFullShard, kShardGradOp, kHybridShard, kHybridShardZero2}) {
    run_ranks(4, [strategy](Ranks world) {
      TinyLM model = make_tiny_lm({});
      auto sharded = fully_shard(*model, block_options(world, strategy));
      const int64_t units = static_cast<int64_t>(sharded->engine().units().size());
      {
        auto no_sync = sharded->no_sync();
        model->loss(batch_of(world->rank(), 0)).backward();
        EXPECT_EQ(sharded->diagnostics().stats().gathered_units, reshards_after_forward(strategy) ? 0 : units);
        int64_t gathers = sharded->diagnostics().stats().all_gathers;
        model->loss(batch_of(world->rank(), 1)).backward();
        // The root and the last unit stay gathered from forward to backward.
        EXPECT_EQ(sharded->diagnostics().stats().all_gathers - gathers,
                  reshards_after_forward(strategy) ? 2 * units - 2 : 0);
        EXPECT_GT(sharded->diagnostics().stats().gradient_buffer_bytes, 0);  // whole gradients, on each rank
      }
      model->loss(batch_of(world->rank(), 2)).backward();
      EXPECT_EQ(sharded->diagnostics().stats().gathered_units, 0);
      EXPECT_EQ(sharded->diagnostics().stats().gradient_buffer_bytes, 0);
    });
  }
}

TEST(NoSync, ReducesUnitsThatTheLastPassDoesNotUse) {
  run_ranks(2, [](Ranks world) {
    torch::nn::ModuleList pair;
    auto both = testing::seeded([&] {
      pair->push_back(torch::nn::Linear(3, 2));
      pair->push_back(torch::nn::Linear(3, 2));
      return pair;
    });
    Options options = block_options(world, kFullShard);
    options.auto_wrap_policy = module_class_policy<torch::nn::LinearImpl>();
    auto sharded = fully_shard(*both, options);
    torch::Tensor x = torch::full({1, 3}, world->rank() + 1.0);
    auto loss = [&](int which) { return both[which]->as<torch::nn::Linear>()->forward(x).sum(); };
    {
      auto no_sync = sharded->no_sync();
      loss(0).backward();
    }
    loss(1).backward();
    // The mean of 1 and 2, in each element of both weights.
    for (const auto& [name, leaf] : sharded->named_parameters()) {
      if (leaf.numel() > 0) {
        EXPECT_TRUE(
            torch::equal(leaf.grad(), torch::full_like(leaf.grad(), name.find("bias") == std::string::npos ? 1.5 : 1)))
            << name << leaf.grad();
      }
    }
  });
}

TEST(NoSync, PassesUpToAReductionAreAStep) {
  run_ranks(2, [&](Ranks world) {
    TinyLM model = make_tiny_lm({}, at::kDouble);
    auto sharded = fully_shard(*model, block_options(world, kFullShard));
    std::vector<std::array<int64_t, 3>> counts;
    for (int pass = 0; pass < 2 * kPasses; ++pass) {
      run_pass(Way::kNoSync, pass % kPasses, *sharded, model, world->rank(), pass / kPasses);
      const EngineStats stats = sharded->diagnostics().stats();
      counts.push_back({stats.steps, stats.forwards_of_step, stats.backwards_of_step});
    }
    EXPECT_EQ(counts,
              (std::vector<std::array<int64_t, 3>>{{0, 1, 1}, {0, 2, 2}, {1, 0, 0}, {1, 1, 1}, {1, 2, 2}, {2, 0, 0}}));
  });
}

// ---------------------------------------------------------------- what goes wrong

TEST(NoSync, ZeroGradDropsAccumulatedGradients) {
  for (bool on_module : {false, true}) {
    for (ShardingStrategy strategy : {kFullShard, kNoShard, kHybridShard}) {
      run_ranks(2, [&](Ranks world) {
        auto gradients = [&](bool accumulate_first) {
          TinyLM model = make_tiny_lm({}, at::kDouble);
          auto sharded = fully_shard(*model, block_options(world, strategy));
          if (accumulate_first) {
            sharded->backward(model->loss(batch_of(world->rank(), 5)), {.requires_gradient_sync = false});
            on_module ? model->zero_grad() : sharded->zero_grad();
          }
          model->loss(batch_of(world->rank(), 0)).backward();
          std::vector<torch::Tensor> result;
          for (const torch::Tensor& leaf : sharded->parameters()) {
            result.push_back(leaf.grad().defined() ? leaf.grad().clone() : torch::Tensor());
          }
          return result;
        };
        auto want = gradients(false), got = gradients(true);
        for (size_t i = 0; i < want.size(); ++i) EXPECT_TRUE(testing::same_bits(got[i], want[i]));
      });
    }
  }
}

struct Thrown : std::runtime_error {
  using std::runtime_error::runtime_error;
};

TEST(NoSync, ReducingAfterwardsIsRefusedWhereNothingIsReduced) {
  run_ranks(2, [](Ranks world) {
    TinyLM model = make_tiny_lm({});
    auto sharded = fully_shard(*model, block_options(world, kFullShard));
    sharded->reduce_gradients();  // there are none
    for (const auto& leaf : sharded->parameters()) EXPECT_FALSE(leaf.grad().defined());
    auto no_sync = sharded->no_sync();
    expect_error([&] { sharded->reduce_gradients(); }, {"reduce_gradients()", "inside no_sync()"});
  });
}

// If a backward throws in the middle of an accumulation, the gradients of earlier passes are lost too. The next
// backward reports this.
TEST(NoSync, LostAccumulationIsAnError) {
  run_ranks(2, [](Ranks world) {
    TinyLM model = make_tiny_lm({}, at::kDouble);
    auto sharded = fully_shard(*model, block_options(world, kFullShard));
    auto step = [&] {
      sharded->backward(model->loss(batch_of(world->rank(), 1)), {.requires_gradient_sync = false});
      model->loss(batch_of(world->rank(), 2)).backward();
      return sharded->grad_norm().item<double>();
    };
    double want = step();
    sharded->zero_grad();
    sharded->backward(model->loss(batch_of(world->rank(), 1)), {.requires_gradient_sync = false});
    torch::Tensor x = model->embed(batch_of(world->rank(), 2));
    x.register_hook([](torch::Tensor gradient) -> torch::Tensor {
      throw Thrown("in backward");
      return gradient;
    });
    for (const auto& block : *model->blocks) x = block->as<testing::Block>()->forward(x);
    EXPECT_THROW(model->head(model->norm(x)).sum().backward(), Thrown);
    expect_error([&] { model->loss(batch_of(world->rank(), 2)).backward(); },
                 {"a backward threw while gradients", "lost", "zero_grad"});
    sharded->zero_grad();
    EXPECT_EQ(step(), want);
    sharded->reset();
  });
}

// ---------------------------------------------------------------- reductions left in flight

TEST(IsLastBackward, WaitsWhenSomebodyLooks) {
  run_ranks(2, [](Ranks world) {
    TinyLM model = make_tiny_lm({}, at::kDouble);
    auto sharded = fully_shard(*model, block_options(world, kFullShard));
    auto defined = [&] {
      int64_t count = 0;
      for (const torch::Tensor& leaf : sharded->parameters()) count += leaf.grad().defined();
      return count;
    };
    model->loss(batch_of(world->rank(), 0)).backward();
    const int64_t all = defined();
    const double norm = sharded->grad_norm().item<double>();
    sharded->zero_grad();
    sharded->set_is_last_backward(false);
    model->loss(batch_of(world->rank(), 0)).backward();
    EXPECT_LT(defined(), all);
    EXPECT_EQ(sharded->grad_norm().item<double>(), norm);
    EXPECT_EQ(defined(), all);
    sharded->zero_grad();
    model->loss(batch_of(world->rank(), 0)).backward();
    sharded->wait_for_gradients();
    EXPECT_EQ(defined(), all);
  });
}

}  // namespace
}  // namespace fsdp
