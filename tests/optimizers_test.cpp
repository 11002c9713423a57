// Tests that any torch::optim optimizer trains over shards as it does over the plain module.
#include "engine/engine.h"
#include "optim/fused_adamw.h"
#include "optim/sgd.h"
#include "support/nets/tiny_lm.h"
#include "support/ranks/thread_ranks.h"
#include "support/training/sharding.h"

namespace fsdp {
namespace {

using testing::make_tiny_lm;
using testing::run_ranks;
using testing::TinyLM;
using testing::weights_of;

using MakeOptimizer = std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<torch::Tensor>)>;
struct Case {
  const char* name;
  MakeOptimizer make;
};

const std::vector<Case> kOptimizers = {
    {"SGD", [](auto p) { return std::make_unique<torch::optim::SGD>(p, 0.1); }},
    {"SGD_momentum",
     [](auto p) {
       return std::make_unique<torch::optim::SGD>(
           p, torch::optim::SGDOptions(0.1).momentum(0.9).nesterov(true).weight_decay(0.01));
     }},
    {"Adam",
     [](auto p) { return std::make_unique<torch::optim::Adam>(p, torch::optim::AdamOptions(0.01).amsgrad(true)); }},
    {"AdamW", [](auto p) { return std::make_unique<torch::optim::AdamW>(p, 0.01); }},
    {"Adagrad", [](auto p) { return std::make_unique<torch::optim::Adagrad>(p, torch::optim::AdagradOptions(0.1)); }},
    {"RMSprop", [](auto p) {
       return std::make_unique<torch::optim::RMSprop>(p,
                                                      torch::optim::RMSpropOptions(0.01).momentum(0.5).centered(true));
     }}};

constexpr int kSteps = 4;

// Trains in one process on the mean loss of all ranks' batches.
std::map<std::string, torch::Tensor> train_alone(int world_size, const MakeOptimizer& make) {
  TinyLM model = make_tiny_lm({}, torch::kDouble);
  auto optimizer = make(model->parameters());
  for (int step = 0; step < kSteps; ++step) {
    optimizer->zero_grad();
    for (int rank = 0; rank < world_size; ++rank) (model->loss(testing::batch_of(rank, step)) / world_size).backward();
    optimizer->step();
  }
  return weights_of(*model);
}

void expect_close(const std::map<std::string, torch::Tensor>& got, const std::map<std::string, torch::Tensor>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (const auto& [name, tensor] : want) {
    ASSERT_TRUE(got.count(name)) << name;
    double error = (got.at(name) - tensor).norm().item<double>() / tensor.norm().item<double>();
    EXPECT_LE(error, 1e-11) << name;
  }
}

class Optimizers : public ::testing::TestWithParam<std::tuple<Case, int, bool>> {};
INSTANTIATE_TEST_SUITE_P(All, Optimizers,
                         ::testing::Combine(::testing::ValuesIn(kOptimizers), ::testing::Values(1, 3),
                                            ::testing::Bool()),
                         [](const auto& info) {
                           return c10::str(std::get<0>(info.param).name, "_", std::get<1>(info.param), "_",
                                           std::get<2>(info.param) ? "orig" : "flat");
                         });

// Runs an evaluation between backward and step: units that stay gathered must not hide the step.
TEST_P(Optimizers, TrainAsAlone) {
  const auto& [optimizer_case, world_size, use_orig_params] = GetParam();
  auto want = train_alone(world_size, optimizer_case.make);
  run_ranks(world_size, [&, &oc = optimizer_case, &orig = use_orig_params](std::shared_ptr<Communicator> communicator) {
    TinyLM model = make_tiny_lm({}, torch::kDouble);
    auto sharded = fully_shard(*model, testing::block_options(communicator, ShardingStrategy::kFullShard, orig));
    auto optimizer = oc.make(sharded->parameters());
    for (int step = 0; step < kSteps; ++step) {
      optimizer->zero_grad();
      model->loss(testing::batch_of(communicator->rank(), step)).backward();
      {
        torch::NoGradGuard no_grad;
        (void)model->loss(testing::batch_of(0, 9));
        sharded->reshard();
      }
      optimizer->step();
    }
    expect_close(weights_of(*sharded), want);
  });
}

// With one leaf for each parameter, groups can be made by name: no weight decay for norms, gates and biases.
TEST(ParameterGroups, NoWeightDecayByName) {
  auto make_groups = [](const std::vector<std::pair<std::string, torch::Tensor>>& named) {
    std::vector<torch::Tensor> decayed, others;
    for (const auto& [name, tensor] : named) {
      bool decay = name.find("norm") == std::string::npos && name.find("gate") == std::string::npos &&
                   name.find("bias") == std::string::npos;
      (decay ? decayed : others).push_back(tensor);
    }
    std::vector<torch::optim::OptimizerParamGroup> groups;
    groups.emplace_back(
        decayed, std::make_unique<torch::optim::AdamWOptions>(torch::optim::AdamWOptions(0.02).weight_decay(0.5)));
    groups.emplace_back(others,
                        std::make_unique<torch::optim::AdamWOptions>(torch::optim::AdamWOptions(0.01).weight_decay(0)));
    return std::make_unique<torch::optim::AdamW>(std::move(groups), torch::optim::AdamWOptions(0.02));
  };
  TinyLM plain = make_tiny_lm({}, torch::kDouble);
  std::vector<std::pair<std::string, torch::Tensor>> named;
  for (const auto& entry : plain->named_parameters()) named.emplace_back(entry.key(), entry.value());
  auto optimizer = make_groups(named);
  for (int step = 0; step < kSteps; ++step) {
    optimizer->zero_grad();
    for (int rank = 0; rank < 2; ++rank) (plain->loss(testing::batch_of(rank, step)) / 2).backward();
    optimizer->step();
  }
  run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    TinyLM model = make_tiny_lm({}, torch::kDouble);
    Options options;
    options.communicator = communicator;
    options.auto_wrap_policy = size_policy(90);
    auto sharded = testing::shard_strictly(*model, options);
    auto sharded_optimizer = make_groups(sharded->named_parameters());
    for (int step = 0; step < kSteps; ++step) {
      sharded_optimizer->zero_grad();
      model->loss(testing::batch_of(communicator->rank(), step)).backward();
      sharded_optimizer->step();
    }
    expect_close(weights_of(*sharded), weights_of(*plain));
  });
}

// Units that stay gathered, as in SHARD_GRAD_OP after a forward without backward, are gathered again after an optimizer
// has written their shards.
template <typename Optimizer>
void expect_to_follow(const std::function<Optimizer(std::vector<torch::Tensor>)>& make) {
  for (bool orig : {true, false}) {
    run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
      TinyLM model = make_tiny_lm({});
      Options options;
      options.communicator = communicator;
      options.sharding_strategy = ShardingStrategy::kShardGradOp;
      options.use_orig_params = orig;
      options.auto_wrap_policy = testing::every_module();
      auto sharded = fully_shard(*model, options);
      auto optimizer = make(sharded->parameters());
      const torch::Tensor batch = testing::batch_of(0, 1);
      for (int step = 0; step < 2; ++step) {
        sharded->zero_grad();
        model->loss(batch).backward();
        const torch::Tensor before = model->forward(batch).detach().clone();
        optimizer.step();
        const torch::Tensor after = model->forward(batch).detach().clone();
        EXPECT_FALSE(torch::allclose(after, before, 1e-3, 1e-3));
        sharded->reshard();
        EXPECT_TRUE(testing::same_bits(after, model->forward(batch).detach()));
      }
    });
  }
}

TEST(UnitsThatStayGathered, FollowEveryOptimizer) {
  expect_to_follow<torch::optim::AdamW>([](auto p) { return torch::optim::AdamW(std::move(p), 0.1); });
  expect_to_follow<optim::FusedAdamW>([](auto p) { return optim::FusedAdamW(std::move(p), {.learning_rate = 0.1}); });
  expect_to_follow<optim::Sgd>([](auto p) { return optim::Sgd(std::move(p), {.learning_rate = 0.1}); });
}

// With more ranks than a unit has elements, some ranks hold no part of the unit, and still take part.
TEST(EmptyShards, SeveralSteps) {
  struct DustImpl : torch::nn::Module {
    DustImpl() {
      a = register_module("a", torch::nn::Linear(torch::nn::LinearOptions(1, 1)));  // 2 elements
      b = register_module("b", torch::nn::Linear(torch::nn::LinearOptions(1, 5)));  // 10 elements
      gate = register_parameter("gate", torch::full({1}, 0.5, torch::kDouble));     // 1 element
      to(torch::kDouble);
    }
    torch::Tensor loss(double x) {
      return (b(torch::tanh(a(torch::full({1, 1}, x, torch::kDouble)))) * gate).pow(2).sum();
    }
    torch::nn::Linear a{nullptr}, b{nullptr};
    torch::Tensor gate;
  };
  constexpr int kRanks = 4;
  for (const Case& optimizer_case : kOptimizers) {
    SCOPED_TRACE(optimizer_case.name);
    auto make = [] { return std::make_shared<DustImpl>(); };
    auto plain = testing::seeded(make);
    auto optimizer = optimizer_case.make(plain->parameters());
    for (int step = 0; step < kSteps; ++step) {
      optimizer->zero_grad();
      for (int rank = 0; rank < kRanks; ++rank) (plain->loss(step + rank + 1) / kRanks).backward();
      optimizer->step();
    }
    for (bool orig : {true, false}) {
      run_ranks(kRanks, [&](std::shared_ptr<Communicator> communicator) {
        auto model = testing::seeded(make);
        Options options = testing::one_rank_options();
        options.communicator = communicator;
        options.use_orig_params = orig;
        auto sharded = fully_shard(*model, options);
        auto sharded_optimizer = optimizer_case.make(sharded->parameters());
        for (int step = 0; step < kSteps; ++step) {
          sharded_optimizer->zero_grad();
          model->loss(step + communicator->rank() + 1).backward();
          EXPECT_GT(sharded->clip_grad_norm_(1e9).item<double>(), 0);
          {
            torch::NoGradGuard no_grad;
            (void)model->loss(1);  // leaves units gathered; all ranks must detect the step alike
          }
          sharded_optimizer->step();
        }
        expect_close(weights_of(*sharded), weights_of(*plain));
      });
    }
  }
}

}  // namespace
}  // namespace fsdp
