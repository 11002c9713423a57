// Hooks on reductions of gradients, and the factor that divides them.
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

constexpr int kSteps = 3;

// Optimizer steps (p -= g / 16) inside backward, unit by unit, give the same weights as one step after it. No unit's
// gradient outlives its update.
TEST(UnitReducedHook, StepsOptimizersInsideBackward) {
  for (ShardingStrategy strategy : {kFullShard, kShardGradOp, kNoShard, kHybridShard}) {
    for (bool orig : {true, false}) {
      run_ranks(4, [&](Ranks world) {
        auto train = [&](bool inside) {
          TinyLM model = make_tiny_lm({}, at::kDouble);
          auto sharded = fully_shard(*model, block_options(world, strategy, orig));
          std::vector<std::string> order;
          if (inside) {
            sharded->hooks().set_unit_reduced_hook(
                [&](const std::string& unit, const std::vector<torch::Tensor>& leaves) {
                  order.push_back(unit);
                  int64_t alive = 0;
                  for (const torch::Tensor& leaf : sharded->parameters()) alive += leaf.grad().defined();
                  EXPECT_LE(alive, static_cast<int64_t>(leaves.size()));
                  testing::descend(leaves);
                  for (const torch::Tensor& leaf : leaves) leaf.mutable_grad().reset();
                });
          }
          for (int step = 0; step < kSteps; ++step) {
            model->loss(batch_of(world->rank(), step)).backward();
            if (!inside) {
              testing::descend(sharded->parameters());
              sharded->zero_grad();
            } else {
              EXPECT_THAT(order, ::testing::ElementsAre("blocks.2", "blocks.1", "blocks.0", "root"));
              order.clear();
            }
          }
          return weights_of(*sharded);
        };
        testing::expect_same(train(true), train(false));
      });
    }
  }
}

TEST(UnitReducedHook, IsNotCalledBeforeTheStepIsComplete) {
  run_ranks(2, [](Ranks world) {
    TinyLM model = make_tiny_lm({}, at::kDouble);
    auto sharded = fully_shard(*model, block_options(world, kFullShard));
    int calls = 0;
    sharded->hooks().set_unit_reduced_hook([&](const std::string&, const std::vector<torch::Tensor>&) { ++calls; });
    sharded->backward(model->loss(batch_of(world->rank(), 0)), {.requires_gradient_sync = false});
    EXPECT_EQ(calls, 0);
    model->loss(batch_of(world->rank(), 1)).backward();
    EXPECT_EQ(calls, 4);
  });
}

// Runs a module in a nested backward inside the outer one, as reentrant checkpointing does. The module's parameters get
// their gradients there, before the gradients from other uses.
struct Reentrant : torch::autograd::Function<Reentrant> {
  static torch::Tensor forward(torch::autograd::AutogradContext* context, const torch::Tensor& x, int64_t module) {
    torch::NoGradGuard no_grad;
    context->save_for_backward({x});
    context->saved_data["module"] = module;
    return reinterpret_cast<torch::nn::LinearImpl*>(module)->forward(x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    torch::AutoGradMode grad(true);
    torch::Tensor x = context->get_saved_variables()[0].detach().requires_grad_();
    reinterpret_cast<torch::nn::LinearImpl*>(context->saved_data["module"].toInt())->forward(x).backward(gradients[0]);
    return {x.grad(), torch::Tensor()};
  }
};

// A unit gets more gradients after it was reduced in the same backward: the optimizer would step on partial gradients.
TEST(UnitReducedHook, SteppingTooEarlyIsAnError) {
  run_ranks(2, [](Ranks world) {
    auto net = testing::seeded([] {
      torch::nn::ModuleList list;
      for (int i = 0; i < 3; ++i) list->push_back(torch::nn::Linear(3, 3));
      return list;
    });
    Options options = block_options(world, kFullShard);
    options.auto_wrap_policy = module_class_policy<torch::nn::LinearImpl>();
    auto sharded = fully_shard(*net, options);
    sharded->hooks().set_unit_reduced_hook([](const std::string&, const std::vector<torch::Tensor>&) {});
    const auto layer = [&](int index) { return net[index]->as<torch::nn::Linear>(); };
    const auto in_a_backward_of_its_own = [&](const torch::Tensor& x) {
      return Reentrant::apply(x, reinterpret_cast<int64_t>(layer(0)));
    };
    torch::Tensor x = torch::ones({1, 3}, torch::requires_grad());
    // The nested use comes last in forward, so its gradient arrives first. The engine waits for that of the first use.
    x = in_a_backward_of_its_own(layer(2)->forward(layer(1)->forward(layer(0)->forward(x))));
    EXPECT_NO_THROW(x.sum().backward());
    // The engine has not seen this use in forward.
    x = torch::ones({1, 3}, torch::requires_grad());
    x = layer(0)->forward(layer(2)->forward(layer(1)->forward(in_a_backward_of_its_own(x))));
    expect_error([&] { x.sum().backward(); }, {"unit '0'", "more gradients arrived after", "too early"});
  });
}

TEST(GradientHook, ChangesTheOptimizersGradients) {
  for (ShardingStrategy strategy : {kFullShard, kNoShard, kHybridShard}) {
    run_ranks(2, [&](Ranks world) {
      TinyLM model = make_tiny_lm({}, at::kDouble);
      auto sharded = fully_shard(*model, block_options(world, strategy));
      model->loss(batch_of(world->rank(), 0)).backward();
      double norm = sharded->grad_norm().item<double>();
      std::vector<std::string> fqns;
      sharded->hooks().set_gradient_hook([&](const ReducedGradient& reduced) {
        fqns.insert(fqns.end(), reduced.fqns.begin(), reduced.fqns.end());
        reduced.gradient.mul_(2);
      });
      sharded->zero_grad();
      model->loss(batch_of(world->rank(), 0)).backward();
      EXPECT_NEAR(sharded->grad_norm().item<double>(), 2 * norm, 1e-12 * norm);
      EXPECT_EQ(fqns.size(), sharded->shard_slices().size());
      // The hook runs on each reduced gradient before it is added: 2 g + 2 g.
      model->loss(batch_of(world->rank(), 0)).backward();
      EXPECT_NEAR(sharded->grad_norm().item<double>(), 4 * norm, 1e-12 * norm);
      sharded->hooks().set_gradient_hook({});
      sharded->zero_grad();
      model->loss(batch_of(world->rank(), 0)).backward();
      EXPECT_NEAR(sharded->grad_norm().item<double>(), norm, 1e-12 * norm);
    });
  }
}

// A user's compression hook: gradients travel between ranks in bf16, whatever dtypes the engine uses.
void reduce_compressed(const ReduceRequest& request) {
  torch::Tensor low = request.unsharded.to(at::kBFloat16);
  torch::Tensor part = low;
  if (request.shard) {
    part = torch::empty({request.reduced.numel()}, low.options());
    request.shard->reduce_scatter(part, low, {1.0 / request.shard->size()}, {request.unit, 0, Pass::kUser})->wait();
  }
  const double rest = request.scale * (request.shard ? request.shard->size() : 1);
  if (request.replicate) {
    request.replicate->all_reduce(request.reduced, part, {rest}, {request.unit, 0, Pass::kUser})->wait();
  } else {
    request.reduced.copy_(part.to(request.reduced.scalar_type()) * rest);
  }
}

TEST(CommunicationHook, ReplacesTheEnginesReduction) {
  for (ShardingStrategy strategy : {kFullShard, kShardGradOp, kNoShard, kHybridShard}) {
    run_ranks(4, [&](Ranks world) {
      TinyLM model = make_tiny_lm({});
      auto sharded = fully_shard(*model, block_options(world, strategy));
      auto gradients = [&] {
        sharded->zero_grad();
        model->loss(batch_of(world->rank(), 0)).backward();
        std::vector<torch::Tensor> result;
        for (const torch::Tensor& leaf : sharded->parameters()) {
          result.push_back(leaf.grad().defined() ? leaf.grad().clone() : torch::zeros({0}, leaf.options()));
        }
        return torch::cat(result);
      };
      torch::Tensor want = gradients();
      const uint64_t before = world->bytes_sent();
      gradients();
      const uint64_t plain = world->bytes_sent() - before;
      sharded->hooks().set_communication_hook(reduce_compressed);
      torch::Tensor got = gradients();
      EXPECT_TRUE(torch::allclose(got, want, 2e-2, 1e-4));
      EXPECT_FALSE(torch::equal(got, want));
      if (strategy == kNoShard && world->backend() != "shm+gloo") {  // between hosts, sums of bf16 travel in fp32
        // In addition to the gradients, the hook run sends one word per unit to each other rank, which says which
        // parameters were captured. With and without the hook, one byte per unit follows at the end.
        const uint64_t words = 4 * 3 * sizeof(uint64_t), agreement = 4 * 3;
        EXPECT_EQ(world->bytes_sent() - before - plain - agreement, (plain - agreement) / 2 + words);
      }
      if (is_hybrid(strategy)) {
        expect_error([&] { sharded->backward(model->loss(batch_of(0, 0)), {.requires_all_reduce = false}); },
                     {"requires_all_reduce", "communication hook"});
      }
    });
  }
}

double sum_of_parameters(TinyLM& model, const std::string& module) {
  torch::NoGradGuard no_grad;
  double sum = 0;
  for (const auto& child : model->named_modules()) {
    if (child.key() != module) continue;
    for (const torch::Tensor& parameter : child.value()->parameters()) sum += parameter.sum().item<double>();
  }
  return sum;
}

// As a hook does that weighs gradients by the size of their parameters. The unit is gathered for it.
TEST(CommunicationHook, MayReadTheUnitsParameters) {
  TinyLM whole = make_tiny_lm({}, at::kDouble);
  for (ShardingStrategy strategy : {kFullShard, kShardGradOp, kNoShard}) {
    run_ranks(2, [&](Ranks world) {
      TinyLM model = make_tiny_lm({}, at::kDouble);
      auto sharded = fully_shard(*model, block_options(world, strategy));
      std::map<std::string, double> sums;
      sharded->hooks().set_communication_hook([&](const ReduceRequest& request) {
        sums[request.unit] = sum_of_parameters(model, request.unit);
        reduce_compressed(request);
      });
      model->loss(batch_of(world->rank(), 0)).backward();
      for (const char* block : {"blocks.0", "blocks.1", "blocks.2"}) {
        EXPECT_NEAR(sums.at(block), sum_of_parameters(whole, block), 1e-9) << block;
      }
    });
  }
}

TEST(DivideFactor, ReplacesTheNumberOfRanks) {
  for (ShardingStrategy strategy : {kFullShard, kNoShard, kHybridShard}) {
    run_ranks(4, [&](Ranks world) {
      TinyLM model = make_tiny_lm({}, at::kDouble);
      auto sharded = fully_shard(*model, block_options(world, strategy));
      model->loss(batch_of(world->rank(), 0)).backward();
      double mean = sharded->grad_norm().item<double>();
      sharded->set_gradient_divide_factor(1.0);
      sharded->zero_grad();
      model->loss(batch_of(world->rank(), 0)).backward();
      EXPECT_NEAR(sharded->grad_norm().item<double>(), 4 * mean, 1e-12 * mean);
      expect_error([&] { sharded->set_gradient_divide_factor(0.0); }, {"set_gradient_divide_factor", "positive"});
      sharded->set_gradient_divide_factor({});
      sharded->zero_grad();
      model->loss(batch_of(world->rank(), 0)).backward();
      EXPECT_EQ(sharded->grad_norm().item<double>(), mean);
    });
  }
}

}  // namespace
}  // namespace fsdp
