// Mixed precision: which values are rounded where, compared with rounding by hand in one process; and memory.
#include <ATen/record_function.h>

#include "engine/engine.h"
#include "fsdp/fsdp.h"
#include "optim/fused_adamw.h"
#include "support/nets/tiny_lm.h"
#include "support/ranks/over_gloo.h"
#include "support/ranks/thread_ranks.h"
#include "support/training/sharding.h"

namespace fsdp {
namespace {

using testing::batch_of;
using testing::expect_same;
using testing::make_tiny_lm;
using testing::run_ranks;
using testing::TinyLM;
using testing::weights_of;
using enum ShardingStrategy;

using Ranks = std::shared_ptr<Communicator>;
using Tensors = std::map<std::string, torch::Tensor>;

// ---------------------------------------------------------------- against rounding by hand

struct Case {
  int world_size;
  ShardingStrategy strategy;
  at::ScalarType compute, reduce;
  bool use_orig_params;

  int factor() const {
    return strategy == kNoShard ? 1 : is_hybrid(strategy) ? std::max(world_size / 2, 1) : world_size;
  }
};

std::string case_name(const ::testing::TestParamInfo<Case>& info) {
  const Case& c = info.param;
  return c10::str(to_string(c.strategy), "_", c.world_size, "ranks_", c10::toString(c.compute), "_",
                  c10::toString(c.reduce), c.use_orig_params ? "_orig" : "_flat");
}

// Returns the sum of the parts in rank order, in fp32, times `scale`.
torch::Tensor mean_of(const std::vector<torch::Tensor>& parts, float scale) {
  torch::Tensor sum = parts[0].to(at::kFloat);
  for (size_t i = 1; i < parts.size(); ++i) sum = sum + parts[i].to(at::kFloat);
  return sum * scale;
}

// Returns the gradient that reaches the shards: the mean in the shard group; if there are replicas, rounded to the
// reduce dtype, then the mean over replicas, which travels in the reduce dtype.
torch::Tensor reduced(const Case& c, const std::vector<torch::Tensor>& gradients) {
  const int F = c.factor(), replicas = c.world_size / F;
  std::vector<torch::Tensor> groups;
  for (int k = 0; k < replicas; ++k) {
    std::vector<torch::Tensor> parts;
    for (int rank = k * F; rank < (k + 1) * F; ++rank) parts.push_back(gradients[rank].to(c.reduce));
    groups.push_back(F == 1 ? parts[0] : mean_of(parts, 1.0f / F));
  }
  if (replicas == 1) return groups[0].to(at::kFloat);
  for (torch::Tensor& group : groups) group = group.to(c.reduce);
  return mean_of(groups, 1.0f / replicas).to(c.reduce).to(at::kFloat);
}

// Trains fp32 masters, with forward and backward on a copy in the compute dtype.
Tensors train_by_hand(const Case& c, int steps) {
  TinyLM master = make_tiny_lm({});
  for (int step = 0; step < steps; ++step) {
    std::vector<Tensors> gradients;
    for (int rank = 0; rank < c.world_size; ++rank) {
      TinyLM low = make_tiny_lm({}, c.compute);
      torch::NoGradGuard no_grad;
      for (size_t i = 0; i < low->parameters().size(); ++i) low->parameters()[i].copy_(master->parameters()[i]);
      torch::AutoGradMode grad(true);
      low->loss(batch_of(rank, step)).backward();
      gradients.push_back(testing::gradients_of(*low));
    }
    torch::NoGradGuard no_grad;
    for (auto& entry : master->named_parameters()) {
      std::vector<torch::Tensor> parts;
      for (const Tensors& of_rank : gradients) parts.push_back(of_rank.at(entry.key()));
      entry.value().sub_(reduced(c, parts), 1.0 / 16);
    }
  }
  return weights_of(*master);
}

Options options_for(const Ranks& world, const Case& c) {
  Options options = testing::block_options(world, c.strategy, c.use_orig_params);
  options.param_dtype = c.compute;
  options.reduce_dtype = c.reduce;
  return options;
}

class MixedPrecision : public ::testing::TestWithParam<Case> {};

TEST_P(MixedPrecision, RoundsWhereItShould) {
  const Case& c = GetParam();
  constexpr int kSteps = 2;
  Tensors want = train_by_hand(c, kSteps);
  run_ranks(c.world_size, [&](Ranks world) {
    TinyLM model = make_tiny_lm({});
    auto sharded = testing::shard_strictly(*model, options_for(world, c));
    for (int step = 0; step < kSteps; ++step) {
      sharded->zero_grad();
      model->loss(batch_of(world->rank(), step)).backward();
      testing::descend(sharded->parameters());
    }
    expect_same(weights_of(*sharded), want);
  });
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (ShardingStrategy strategy : {kFullShard, kShardGradOp, kNoShard, kHybridShard, kHybridShardZero2}) {
    for (auto [compute, reduce] : {std::pair{at::kBFloat16, at::kBFloat16},
                                   {at::kBFloat16, at::kFloat},
                                   {at::kHalf, at::kHalf},
                                   {at::kHalf, at::kFloat},
                                   {at::kFloat, at::kBFloat16},
                                   {at::kBFloat16, at::kHalf}}) {
      for (int world_size : {1, 2, 4}) {
        cases.push_back({world_size, strategy, compute, reduce, world_size != 2});
      }
    }
    if (!is_hybrid(strategy)) {
      cases.push_back({3, strategy, at::kBFloat16, at::kFloat, false});
    }
    cases.push_back({8, strategy, at::kBFloat16, at::kBFloat16, true});
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(All, MixedPrecision, ::testing::ValuesIn(all_cases()), case_name);

// ---------------------------------------------------------------- dividing gradients

// Returns the reduced gradient of one parameter with 5 elements. The gradient of each rank is `values`.
torch::Tensor reduced_gradient(const Ranks& world, ShardingStrategy strategy, const torch::Tensor& values) {
  testing::Bag bag(std::vector<torch::Tensor>{torch::ones({5})});
  Options options = options_for(world, {world->size(), strategy, at::kHalf, at::kHalf, true});
  options.auto_wrap_policy = {};
  auto sharded = fully_shard(*bag, options);
  (bag->parameters()[0] * values).sum().backward();
  torch::Tensor whole = torch::zeros({5});
  for (const auto& [name, leaf] : sharded->named_parameters()) {
    const ShardSlice slice = sharded->shard_slices()[0];
    whole.slice(0, slice.begin, slice.end).copy_(leaf.grad());
  }
  // Replicas hold the same part, so the sum over all ranks contains each part once per replica.
  const int64_t replicas = strategy == kNoShard ? world->size() : is_hybrid(strategy) ? 2 : 1;
  world->all_reduce(whole, whole, {1.0 / replicas}, {"whole", 0, Pass::kUser})->wait();
  return whole;
}

// The sum of 40000 over 8 ranks is far above fp16's maximum of 65504, and an eighth of fp16's smallest number is 0.
TEST(DividedGradients, NeitherOverflowNorUnderflowInFp16) {
  for (ShardingStrategy strategy : {kFullShard, kNoShard, kHybridShard}) {
    run_ranks(8, [strategy](Ranks world) {
      torch::Tensor values = torch::tensor({40000.0, 6e-8, -65504.0, 1.0, 0.0}).to(at::kHalf);
      torch::Tensor got = reduced_gradient(world, strategy, values);
      EXPECT_TRUE(torch::equal(got, values.to(at::kFloat))) << to_string(strategy) << got;
    });
  }
}

// ---------------------------------------------------------------- memory, and the one cast

constexpr int64_t kWidth = 12;

torch::nn::Sequential make_chain(int64_t layers) {
  return testing::seeded([&] {
    torch::nn::Sequential chain;
    for (int64_t i = 0; i < layers; ++i) {
      chain->push_back(torch::nn::Linear(kWidth, kWidth * (i % 2 + 1)));
      chain->push_back(torch::nn::Linear(kWidth * (i % 2 + 1), kWidth));
    }
    return chain;
  });
}

// FSDP paper, section 4.4: K_full * psi / F bytes for the shards, and K_low * max psi_i for the gathered parameters.
TEST(Memory, FollowsThePapersFormula) {
  for (auto [low, K_low] : {std::pair{at::kFloat, 4}, {at::kBFloat16, 2}}) {
    testing::run_ranks_over_gloo(3, [low = low, K_low = K_low](Ranks world) {
      auto chain = make_chain(4);
      Options options;
      options.communicator = world;
      options.param_dtype = low;
      options.auto_wrap_policy = module_class_policy<torch::nn::LinearImpl>();
      auto sharded = fully_shard(*chain, options);
      int64_t psi = 0, largest = 0, shards = 0;  // elements with padding; `shards` in bytes
      for (const auto& unit : sharded->engine().units()) {
        for (const auto& flat : unit->flat_parameters()) {
          psi += flat->layout().padded_numel();
          largest = std::max(largest, flat->layout().padded_numel());
          shards += flat->shard().nbytes();
        }
      }
      chain->forward(torch::ones({2, kWidth})).sum().backward();
      constexpr int64_t K_full = 4;
      EXPECT_EQ(shards, K_full * psi / 3);
      EXPECT_EQ(sharded->diagnostics().stats().peak_gathered_bytes, K_low * largest);
      EXPECT_EQ(sharded->diagnostics().stats().gathered_bytes, 0);
    });
  }
}

struct Copies {
  std::atomic<int> casts = 0;
  std::atomic<int> others = 0;
};
thread_local Copies* observed = nullptr;

std::unique_ptr<at::ObserverContext> count_copy(const at::RecordFunction& function) {
  if (observed && std::string(function.name()) == "aten::copy_") {
    const auto inputs = function.inputs();
    const bool cast = inputs[0].toTensor().scalar_type() != inputs[1].toTensor().scalar_type();
    ++(cast ? observed->casts : observed->others);
  }
  return nullptr;
}

TEST(Memory, AGatherCastsOnceAndCopiesNothingElse) {
  auto handle = at::addGlobalCallback(at::RecordFunctionCallback(&count_copy).needsInputs(true));
  testing::run_ranks(2, [](Ranks world) {
    auto chain = make_chain(2);
    Options options;
    options.communicator = world;
    options.param_dtype = at::kBFloat16;
    options.auto_wrap_policy = module_class_policy<torch::nn::LinearImpl>();
    auto sharded = fully_shard(*chain, options);
    sharded->diagnostics().verify_sharding();
    Copies copies;
    observed = &copies;
    sharded->unshard();
    observed = nullptr;
    EXPECT_EQ(copies.casts, 4);
    EXPECT_EQ(copies.others, 0);
  });
  at::removeCallback(handle);
}

// ---------------------------------------------------------------- writes in a wider dtype

// Two elements over four ranks: two ranks hold none of the parameter, and must come to the same gathers as the others.
TEST(WritesInAWiderDtype, AreRoundedAsTheShardsAreOnAllRanks) {
  run_ranks(4, [](Ranks world) {
    auto linear = testing::seeded([] { return torch::nn::Linear(torch::nn::LinearOptions(2, 1).bias(false)); });
    const torch::Tensor rounded = (linear->weight.detach().to(at::kDouble) * 0.3).to(at::kFloat).to(at::kDouble);
    Options options;
    options.communicator = world;
    options.param_dtype = at::kDouble;
    auto sharded = fully_shard(*linear, options);
    const torch::Tensor input = torch::tensor({{1.0, 2.0}}, at::kDouble);
    linear->forward(input).sum().backward();
    sharded->with_full_params([&] {
      const torch::NoGradGuard no_grad;
      linear->weight.mul_(0.3);
    });
    EXPECT_TRUE(torch::equal(linear->forward(input).detach(), input.matmul(rounded.t())));
    EXPECT_TRUE(torch::equal(weights_of(*sharded).at("weight").to(at::kDouble), rounded));
  });
}

// ---------------------------------------------------------------- gradients in low precision

TEST(LowPrecisionGradients, ReachTheOptimizerAsTheyWereReduced) {
  for (ShardingStrategy strategy : {kFullShard, kNoShard, kHybridShard}) {
    for (bool orig : {true, false}) {
      run_ranks(4, [&](Ranks world) {
        auto train = [&](bool keep) {
          TinyLM model = make_tiny_lm({});
          Options options = options_for(world, {4, strategy, at::kBFloat16, at::kBFloat16, orig});
          options.keep_low_precision_grads = keep;
          auto sharded = fully_shard(*model, options);
          optim::FusedAdamW optimizer(sharded->parameters(), {.learning_rate = 0.01});
          for (int step = 0; step < 3; ++step) {
            sharded->zero_grad();
            model->loss(batch_of(world->rank(), step)).backward();
            for (const torch::Tensor& leaf : sharded->parameters()) {
              if (leaf.grad().defined()) {
                EXPECT_EQ(leaf.grad().scalar_type(), keep ? at::kBFloat16 : at::kFloat);
                leaf.mutable_grad() = leaf.grad().to(at::kBFloat16);  // the reduce-scatter's sum is rounded for both
              }
            }
            optimizer.step();
          }
          return weights_of(*sharded);
        };
        expect_same(train(true), train(false));
      });
    }
  }
}

}  // namespace
}  // namespace fsdp
