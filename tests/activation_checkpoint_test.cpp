// Sharded training with recomputed blocks equals sharded training without recomputation, to the bit, in the strictest
// release mode, and never has more units gathered at a time.
#include "fsdp/activation_checkpoint.h"

#include <ATen/CPUGeneratorImpl.h>

#include "engine/engine.h"
#include "support/nets/tiny_lm.h"
#include "support/ranks/thread_ranks.h"
#include "support/training/sharding.h"

namespace fsdp {
namespace {

using testing::Block;
using testing::BlockImpl;
using testing::gradients_of;
using testing::make_tiny_lm;
using testing::run_ranks;
using testing::TinyLM;
using testing::TinyLMImpl;
using torch::Tensor;

// The way to call the blocks of a TinyLM.
using CallBlock = std::function<Tensor(int64_t index, Block block, const Tensor& x)>;

CallBlock by_policy(const CheckpointPolicy& policy) {
  return [policy](int64_t index, Block block, const Tensor& x) { return policy.forward(index, block, x); };
}

Tensor loss_of(TinyLM& model, const Tensor& ids, const CallBlock& call) {
  Tensor x = model->embed(ids.narrow(1, 0, ids.size(1) - 1));
  for (size_t i = 0; i < model->blocks->size(); ++i) {
    x = call(static_cast<int64_t>(i), Block(model->blocks->ptr<BlockImpl>(i)), x);
  }
  Tensor logits = model->head(model->norm(x)).to(at::kFloat);
  return torch::nn::functional::cross_entropy(logits.flatten(0, 1), ids.narrow(1, 1, ids.size(1) - 1).flatten());
}

struct Setting {
  ShardingStrategy strategy = ShardingStrategy::kFullShard;
  std::optional<at::ScalarType> param_dtype = {};
  bool tied = false;
  bool freeze_blocks = false;
  bool strict = true;
  int64_t blocks = 3;
};

struct Trained {
  std::vector<Tensor> losses;
  std::map<std::string, Tensor> gradients;  // of this rank's leaves, in the last step
  std::map<std::string, Tensor> weights;
  int64_t peak_gathered_units = 0;
  int64_t peak_gradient_buffers = 0;  // bytes
};

std::map<std::string, Tensor> leaf_gradients(const ShardedModule& sharded) {
  std::map<std::string, Tensor> gradients;
  for (const auto& [name, leaf] : sharded.named_parameters()) {
    gradients[name] = leaf.grad().defined() ? leaf.grad().clone() : Tensor();
  }
  return gradients;
}

Trained train(const Setting& setting, const std::shared_ptr<Communicator>& communicator, const CallBlock& call) {
  TinyLMImpl::Config config;
  config.tied = setting.tied;
  config.blocks = setting.blocks;
  TinyLM model = make_tiny_lm(config);
  if (setting.freeze_blocks) {
    for (int64_t i : {0, 1}) {
      for (Tensor& parameter : model->blocks[i]->parameters()) parameter.set_requires_grad(false);
    }
  }
  Options options = testing::block_options(communicator, setting.strategy);
  options.param_dtype = setting.param_dtype;
  auto sharded = fully_shard(*model, options);
  sharded->engine().gatherer().set_strict(setting.strict);
  Trained trained;
  for (int step = 0; step < 3; ++step) {
    sharded->zero_grad();
    Tensor loss = loss_of(model, testing::batch_of(communicator->rank(), step), call);
    loss.backward();
    trained.losses.push_back(loss.detach());
    trained.gradients = leaf_gradients(*sharded);
    EXPECT_EQ(sharded->diagnostics().stats().gathered_units, 0);
    testing::descend(sharded->parameters());
  }
  trained.peak_gathered_units = sharded->diagnostics().stats().peak_gathered_units;
  for (const MemoryCategory& category : sharded->diagnostics().memory()) {
    if (category.name == "gradient buffers") trained.peak_gradient_buffers = category.peak;
  }
  trained.weights = testing::weights_of(*sharded);
  return trained;
}

void expect_same(const Trained& got, const Trained& want) {
  for (size_t step = 0; step < want.losses.size(); ++step) {
    EXPECT_TRUE(testing::same_bits(got.losses[step], want.losses[step])) << "step " << step;
  }
  testing::expect_same(got.gradients, want.gradients);
  testing::expect_same(got.weights, want.weights);
}

std::vector<CheckpointPolicy> policies() {
  return {CheckpointPolicy::full(), CheckpointPolicy::every(2),
          CheckpointPolicy::selected_operators({"aten::addmm", "aten::mm", "aten::native_layer_norm"})};
}

class Recomputed : public ::testing::TestWithParam<std::tuple<int, ShardingStrategy, bool>> {};

TEST_P(Recomputed, EqualsTrainingWithout) {
  const auto& [world_size, strategy, strict] = GetParam();
  for (Setting setting :
       {Setting{}, Setting{.param_dtype = at::kBFloat16}, Setting{.tied = true}, Setting{.freeze_blocks = true}}) {
    setting.strategy = strategy;
    setting.strict = strict;
    run_ranks(world_size, [&](std::shared_ptr<Communicator> communicator) {
      const Trained want = train(setting, communicator, by_policy({}));
      for (const CheckpointPolicy& policy : policies()) {
        const Trained got = train(setting, communicator, by_policy(policy));
        expect_same(got, want);
        EXPECT_LE(got.peak_gathered_units, std::max<int64_t>(want.peak_gathered_units, 3));
      }
    });
  }
}

std::string case_name(const ::testing::TestParamInfo<Recomputed::ParamType>& info) {
  return c10::str(to_string(std::get<1>(info.param)), "_", std::get<0>(info.param), "ranks",
                  std::get<2>(info.param) ? "_strict" : "");
}

INSTANTIATE_TEST_SUITE_P(All, Recomputed,
                         ::testing::Combine(::testing::Values(1, 2, 3, 8),
                                            ::testing::Values(ShardingStrategy::kFullShard,
                                                              ShardingStrategy::kShardGradOp,
                                                              ShardingStrategy::kNoShard),
                                            ::testing::Bool()),
                         case_name);

// The forward of a recomputed block records no graph, but counts in the order of reductions: otherwise the gradients of
// all blocks would be kept whole until backward ends.
TEST(RecomputedReductions, HoldNoMoreGradientsThanWithoutRecomputation) {
  run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    const Setting setting{.blocks = 12};
    const Trained want = train(setting, communicator, by_policy({}));
    for (const CheckpointPolicy& policy : policies()) {
      EXPECT_LE(train(setting, communicator, by_policy(policy)).peak_gradient_buffers, want.peak_gradient_buffers);
    }
  });
}

// Each rank has its own generator, as each process has, and draws different numbers.
TEST(RecomputedDropout, DiffersPerRankAndRepeats) {
  run_ranks(3, [&](std::shared_ptr<Communicator> communicator) {
    std::vector<Trained> trained;
    std::vector<Tensor> masks;
    for (bool recompute : {false, true}) {
      at::Generator generator = at::detail::createCPUGenerator(40 + communicator->rank());
      CheckpointOptions options{.generators = {generator}};
      const CallBlock call = [&](int64_t, Block block, const Tensor& x) {
        auto dropped = [&, block](const Tensor& in) mutable {
          Tensor mask = (torch::rand(in.sizes(), generator) < 0.5).to(in.device());
          masks.push_back(mask);
          return block->forward(in * mask);
        };
        return recompute ? activation_checkpoint(options, dropped, x) : dropped(x);
      };
      trained.push_back(train({}, communicator, call));
    }
    expect_same(trained[1], trained[0]);
    ASSERT_EQ(masks.size(), 9u + 18u);
    EXPECT_FALSE(torch::equal(masks[0], masks[1]));
    Tensor mine = masks[0].to(at::kFloat).flatten();
    Tensor all = torch::empty({3 * mine.numel()}, mine.options());
    communicator->all_gather(all, mine, {"masks", 0, Pass::kUser})->wait();
    EXPECT_FALSE(torch::equal(all.slice(0, 0, mine.numel()), all.slice(0, mine.numel(), 2 * mine.numel())));
  });
}

// One region covers the whole model and contains others: no unit is used in the outer backward before the nested one.
TEST(RecomputedWhole, RegionsNestOverUnits) {
  run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    const auto train_whole = [&](bool recompute, const CheckpointPolicy& inner) {
      TinyLM model = make_tiny_lm({});
      auto sharded = testing::shard_strictly(*model, testing::block_options(communicator));
      Tensor ids = testing::batch_of(communicator->rank(), 0);
      const auto whole = [&](const Tensor& tokens) { return loss_of(model, tokens, by_policy(inner)); };
      Tensor loss = recompute ? activation_checkpoint(whole, ids) : whole(ids);
      loss.backward();
      return Trained{{loss.detach()}, leaf_gradients(*sharded), testing::weights_of(*sharded)};
    };
    const Trained want = train_whole(false, {});
    expect_same(train_whole(true, {}), want);
    for (const CheckpointPolicy& inner : policies()) expect_same(train_whole(true, inner), want);
  });
}

TEST(RecomputedWhole, EvaluationAndWeightsAsInputs) {
  run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    std::vector<std::map<std::string, Tensor>> gradients;
    for (bool recompute : {false, true}) {
      TinyLM model = make_tiny_lm({});
      auto sharded = testing::shard_strictly(*model, testing::block_options(communicator));
      Tensor ids = testing::batch_of(communicator->rank(), 0);
      {
        torch::NoGradGuard no_grad;
        Tensor want = loss_of(model, ids, by_policy({}));
        EXPECT_TRUE(testing::same_bits(loss_of(model, ids, by_policy(CheckpointPolicy::full())), want));
      }
      Tensor weight = model->blocks[0]->as<Block>()->up->weight;
      const auto product = [](const Tensor& w, const Tensor& scale) { return torch::tanh(w.mm(w.t())) * scale; };
      Tensor scale = torch::ones({});
      Tensor y = recompute ? activation_checkpoint(product, weight, scale) : product(weight, scale);
      y.sum().backward();
      gradients.push_back(leaf_gradients(*sharded));
    }
    testing::expect_same(gradients[1], gradients[0]);
  });
}

}  // namespace
}  // namespace fsdp
