// Tests uses of whole parameters: summoned, gathered by hand, and updated by optimizers that cannot work on shards.
#include "engine/engine.h"
#include "fsdp/fsdp.h"
#include "support/devices/test_device.h"
#include "support/nets/tiny_lm.h"
#include "support/ranks/thread_ranks.h"
#include "support/training/sharding.h"

namespace fsdp {
namespace {

using testing::batch_of;
using testing::block_options;
using testing::expect_error;
using testing::expect_same;
using testing::make_tiny_lm;
using testing::run_ranks;
using testing::same_bits;
using testing::TinyLM;
using testing::TinyLMImpl;
using testing::weights_of;
using enum ShardingStrategy;

using Ranks = std::shared_ptr<Communicator>;
using Tensors = std::map<std::string, torch::Tensor>;

struct Case {
  int world_size;
  ShardingStrategy strategy;
  bool orig;
};

std::string case_name(const ::testing::TestParamInfo<Case>& info) {
  const Case& c = info.param;
  return c10::str(to_string(c.strategy), "_", c.world_size, c.orig ? "ranks_orig" : "ranks_flat");
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (ShardingStrategy strategy : {kFullShard, kShardGradOp, kNoShard, kHybridShard}) {
    for (int world_size : {1, 2, 3, 4, 8}) {
      for (bool orig : {true, false}) {
        if (!is_hybrid(strategy) || world_size % 2 == 0) {
          cases.push_back({world_size, strategy, orig});
        }
      }
    }
  }
  return cases;
}

class Whole : public ::testing::TestWithParam<Case> {
 protected:
  // Runs `body` on each rank with a sharded model that has gradients and with a plain model that has the gradients of
  // one process.
  void with_gradients(const std::function<void(const Ranks&, TinyLM&, ShardedModule&, const TinyLM&)>& body) {
    const Case& c = GetParam();
    run_ranks(c.world_size, [&](Ranks world) {
      TinyLM alone = make_tiny_lm({}, at::kDouble);
      for (int rank = 0; rank < c.world_size; ++rank) (alone->loss(batch_of(rank, 0)) / c.world_size).backward();
      TinyLM model = make_tiny_lm({}, at::kDouble);
      auto sharded = fully_shard(*model, block_options(world, c.strategy, c.orig));
      model->loss(batch_of(world->rank(), 0)).backward();
      body(world, model, *sharded, alone);
    });
  }
};

INSTANTIATE_TEST_SUITE_P(All, Whole, ::testing::ValuesIn(all_cases()), case_name);

void expect_close(const torch::Tensor& got, const torch::Tensor& want, const std::string& what) {
  EXPECT_TRUE(torch::allclose(got, want, 1e-11, 1e-14)) << what;
}

// ---------------------------------------------------------------- summon_full_params

TEST_P(Whole, GradientsAreSummonedAndWrittenBack) {
  with_gradients([](const Ranks&, TinyLM& model, ShardedModule& sharded, const TinyLM& alone) {
    const double norm = sharded.grad_norm().item<double>();
    sharded.summon_full_params({.with_grads = true}, [&] {
      torch::NoGradGuard no_grad;
      for (size_t i = 0; i < model->parameters().size(); ++i) {
        expect_close(model->parameters()[i].grad(), alone->parameters()[i].grad(), "gradient");
        model->parameters()[i].grad().mul_(3);
      }
      model->norm->weight.mutable_grad() = torch::zeros({7}, at::kDouble);
      model->head->weight.mutable_grad().reset();
    });
    alone->norm->weight.mutable_grad().zero_();
    alone->head->weight.mutable_grad().reset();
    const double rest = torch::nn::utils::clip_grad_norm_(alone->parameters(), 1e9);
    EXPECT_NEAR(sharded.grad_norm().item<double>(), 3 * rest, 1e-11 * norm);
    for (const auto& [name, leaf] : sharded.named_parameters()) {
      EXPECT_FALSE(name == "head.weight" && leaf.grad().defined());
    }
    // Outside the scope, reading a gradient on the module is refused again.
    EXPECT_THROW(model->norm->weight.grad().sum(), c10::Error);
    sharded.summon_full_params({.writeback = false, .with_grads = true}, [&] {
      torch::NoGradGuard no_grad;
      model->norm->bias.grad().fill_(1e6);
      model->norm->bias.fill_(1e6);
    });
    EXPECT_NEAR(sharded.grad_norm().item<double>(), 3 * rest, 1e-11 * norm);
    sharded.zero_grad();
    EXPECT_EQ(sharded.grad_norm().item<double>(), 0);
  });
}

TEST_P(Whole, GradientsComeBackAfterAnException) {
  with_gradients([](const Ranks&, TinyLM& model, ShardedModule& sharded, const TinyLM&) {
    const double norm = sharded.grad_norm().item<double>();
    auto body = [&] {
      torch::NoGradGuard no_grad;
      model->norm->bias.grad().fill_(1e6);
      model->norm->bias.fill_(1e6);
      throw std::runtime_error("in the scope");
    };
    EXPECT_THROW(sharded.summon_full_params({.with_grads = true}, body), std::runtime_error);
    EXPECT_EQ(sharded.grad_norm().item<double>(), norm);
    expect_same(weights_of(sharded), weights_of(*make_tiny_lm({}, at::kDouble)));
  });
}

TEST_P(Whole, GradientsMayBeAssignedWhereThereWereNone) {
  with_gradients([](const Ranks&, TinyLM& model, ShardedModule& sharded, const TinyLM&) {
    sharded.zero_grad();
    sharded.summon_full_params({.with_grads = true}, [&] {
      EXPECT_FALSE(model->head->weight.grad().defined());
      model->norm->weight.mutable_grad() = torch::full({7}, 2.0, at::kDouble);
    });
    EXPECT_NEAR(sharded.grad_norm().item<double>(), 2 * std::sqrt(7.0), 1e-12);
    EXPECT_ANY_THROW(sharded.summon_full_params(
        {.with_grads = true}, [&] { model->norm->weight.mutable_grad() = torch::full({6}, 2.0, at::kDouble); }));
  });
}

TEST_P(Whole, WithoutRecursionOnlyTheRootIsSummoned) {
  with_gradients([](const Ranks&, TinyLM& model, ShardedModule& sharded, const TinyLM&) {
    const Tensors before = weights_of(sharded);
    sharded.summon_full_params({.recurse = false}, [&] {
      torch::NoGradGuard no_grad;
      model->norm->weight.mul_(2);
      model->blocks[0]->as<testing::Block>()->gate.mul_(2);  // is written at once
    });
    Tensors want = before;
    for (const char* fqn : {"norm.weight", "blocks.0.gate"}) want[fqn] = want[fqn] * 2;
    expect_same(weights_of(sharded), want);
  });
}

TEST_P(Whole, OnRank0OnlyTheOthersAreToldSo) {
  with_gradients([](const Ranks& world, TinyLM& model, ShardedModule& sharded, const TinyLM&) {
    expect_error([&] { sharded.summon_full_params({.rank0_only = true}, [] {}); }, {"rank0_only", "writeback"});
    double sum = 0;
    const bool offload = testing::test_device().is_cpu();  // an error on other devices
    sharded.summon_full_params({.writeback = false, .rank0_only = true, .offload_to_cpu = offload}, [&] {
      torch::NoGradGuard no_grad;
      if (world->rank() == 0) {
        for (const torch::Tensor& parameter : model->parameters()) sum += parameter.sum().item<double>();
        model->norm->weight.fill_(7);
      } else {
        expect_error([&] { model->norm->weight.sum(); }, {"rank0_only", "only rank 0 has it"});
      }
    });
    EXPECT_EQ(sum != 0, world->rank() == 0);
    expect_same(weights_of(sharded), weights_of(*make_tiny_lm({}, at::kDouble)));
    int visits = 0;
    sharded.for_each_full_parameter([&](const std::string&, const torch::Tensor&) { ++visits; }, {.rank0_only = true});
    EXPECT_EQ(visits, world->rank() == 0 ? static_cast<int>(sharded.shard_slices().size()) : 0);
  });
}

// ---------------------------------------------------------------- norms

TEST_P(Whole, GradientsAreClippedByAnyNorm) {
  for (double p : {0.5, 1.0, 2.0, 3.0, std::numeric_limits<double>::infinity()}) {
    with_gradients([p](const Ranks&, TinyLM&, ShardedModule& sharded, const TinyLM& alone) {
      const double want = torch::nn::utils::clip_grad_norm_(alone->parameters(), 0.25, p);
      EXPECT_NEAR(sharded.clip_grad_norm_(0.25, p).item<double>(), want, 1e-11 * want);
      EXPECT_NEAR(sharded.grad_norm(p).item<double>(), std::min(want, 0.25), 1e-5);
    });
  }
}

// ---------------------------------------------------------------- optimizers that need whole parameters

// Muon: momentum, orthogonalised by Newton-Schulz for matrices, plain for vectors.
struct Muon {
  Tensors momentum;
  void update(const std::string& name, torch::Tensor value, const torch::Tensor& gradient) {
    torch::NoGradGuard no_grad;
    torch::Tensor& m = momentum[name];
    m = m.defined() ? 0.9 * m + gradient : gradient.clone();
    torch::Tensor step = m;
    if (m.dim() == 2) {
      step = m / (m.norm() + 1e-7);
      for (int i = 0; i < 5; ++i) {
        torch::Tensor gram = step.mm(step.t());
        step = 3.4445 * step + (-4.7750 * gram + 2.0315 * gram.mm(gram)).mm(step);
      }
    }
    value.sub_(step, 0.02);
  }
};

TEST_P(Whole, OptimizersUpdateThemOnTheirOwners) {
  const Case& c = GetParam();
  constexpr int kSteps = 3;
  TinyLM alone = make_tiny_lm({.tied = true}, at::kDouble);
  Muon reference;
  for (int step = 0; step < kSteps; ++step) {
    alone->zero_grad();
    for (int rank = 0; rank < c.world_size; ++rank) (alone->loss(batch_of(rank, step)) / c.world_size).backward();
    for (const auto& [name, gradient] : testing::gradients_of(*alone)) {
      reference.update(name, alone->named_parameters()[name], gradient);
    }
  }
  std::atomic<size_t> states = 0;
  run_ranks(c.world_size, [&](Ranks world) {
    TinyLM model = make_tiny_lm({.tied = true}, at::kDouble);
    auto sharded = fully_shard(*model, block_options(world, c.strategy, c.orig));
    Muon muon;
    for (int step = 0; step < kSteps; ++step) {
      sharded->zero_grad();
      model->loss(batch_of(world->rank(), step)).backward();
      sharded->update_whole_parameters([&](const WholeParameter& p) { muon.update(p.fqn, p.value, p.gradient); });
    }
    states += muon.momentum.size();
    for (const auto& [name, tensor] : weights_of(*sharded)) {
      EXPECT_TRUE(torch::allclose(tensor, alone->named_parameters()[name], 1e-9, 1e-11)) << name;
    }
    EXPECT_LE(sharded->diagnostics().stats().gathered_bytes, 0);
  });
  // State is held once in each shard group.
  const int64_t groups = c.strategy == kNoShard ? c.world_size : is_hybrid(c.strategy) ? (c.world_size > 1 ? 2 : 1) : 1;
  EXPECT_EQ(states, reference.momentum.size() * groups);
}

TEST(Optimizers, ThatNeedInnerProductsAreRefused) {
  torch::nn::Linear linear(3, 2);
  auto sharded = fully_shard(*linear, testing::one_rank_options());
  torch::optim::LBFGS lbfgs(sharded->parameters());
  expect_error([&] { ShardedModule::check_optimizer(lbfgs); }, {"LBFGS", "shards", "update_whole_parameters"});
  torch::optim::Adam adam(sharded->parameters());
  ShardedModule::check_optimizer(adam);
}

// ---------------------------------------------------------------- unshard, reshard

TEST(Unshard, AsynchronouslyIssuesGathersAndWaitsAtFirstUse) {
  run_ranks(3, [](Ranks world) {
    TinyLM model = make_tiny_lm({});
    auto sharded = fully_shard(*model, block_options(world, kFullShard));
    const int64_t units = static_cast<int64_t>(sharded->engine().units().size());
    UnshardHandle handle = sharded->unshard(/*async_op=*/true);
    EXPECT_EQ(sharded->diagnostics().stats().all_gathers, units);
    auto finished = [&] {
      std::vector<engine::Unit*> all = sharded->engine().tree().all();
      return std::count_if(all.begin(), all.end(), [](const engine::Unit* unit) {
        base::MutexLock lock(unit->mutex);
        return unit->buffers.gathered();
      });
    };
    EXPECT_EQ(finished(), 0);
    EXPECT_EQ(sharded->diagnostics().stats().gathered_units, units) << "their memory is taken";
    model->norm->weight.sum();  // waits for its own unit only
    EXPECT_EQ(finished(), 1);
    handle.wait();
    handle.wait();
    EXPECT_EQ(finished(), units);
    // Units that were unsharded on request stay gathered until they have been used.
    torch::NoGradGuard no_grad;
    EXPECT_TRUE(torch::equal(model->forward(batch_of(0, 0)), make_tiny_lm({})->forward(batch_of(0, 0))));
    EXPECT_EQ(sharded->diagnostics().stats().all_gathers, units);
    sharded->unshard(true);
    sharded->reshard();
    EXPECT_EQ(sharded->diagnostics().stats().gathered_bytes, 0);
  });
}

TEST(Unshard, OfOneModuleLeavesTheOthersAlone) {
  run_ranks(2, [](Ranks world) {
    TinyLM model = make_tiny_lm({});
    auto sharded = fully_shard(*model, block_options(world, kFullShard));
    auto block = model->blocks[1];
    sharded->unshard(*block, true).wait();
    EXPECT_EQ(sharded->diagnostics().stats().gathered_units, 1);
    sharded->unshard(*model);
    EXPECT_EQ(sharded->diagnostics().stats().gathered_units, 2);
    sharded->reshard(*block);
    EXPECT_EQ(sharded->diagnostics().stats().gathered_units, 1);
    expect_error([&] { sharded->unshard(*model->head); }, {"no unit was made for this module itself"});
    // Prefetching by hand: the next block's gather is under way while this one computes.
    torch::NoGradGuard no_grad;
    sharded->reshard();
    int64_t before = sharded->diagnostics().stats().all_gathers;
    torch::Tensor x = model->embed(batch_of(0, 0));
    for (size_t i = 0; i < 3; ++i) {
      if (i < 2) sharded->unshard(*model->blocks[i + 1], true);
      x = model->blocks[i]->as<testing::Block>()->forward(x);
    }
    x = model->head(model->norm(x));
    EXPECT_TRUE(torch::equal(x, make_tiny_lm({})->forward(batch_of(0, 0))));
    EXPECT_EQ(sharded->diagnostics().stats().all_gathers - before, 4);
  });
}

TEST(Unshard, GathersUnderWayAreDroppedAfterShardWrites) {
  run_ranks(2, [](Ranks world) {
    TinyLM model = make_tiny_lm({});
    auto sharded = fully_shard(*model, block_options(world, kFullShard));
    torch::NoGradGuard no_grad;
    model->forward(batch_of(0, 0));
    sharded->reshard();
    UnshardHandle handle = sharded->unshard(true);
    for (const ShardSlice& slice : sharded->shard_slices()) slice.data.mul_(2);
    handle.wait();
    TinyLM doubled = make_tiny_lm({});
    for (torch::Tensor parameter : doubled->parameters()) parameter.mul_(2);
    EXPECT_TRUE(torch::equal(model->forward(batch_of(0, 0)), doubled->forward(batch_of(0, 0))));
  });
}

// ---------------------------------------------------------------- apply

TEST(Apply, RunsInitialisersOnWholeParameters) {
  for (int world_size : {1, 2, 3, 8}) {
    run_ranks(world_size, [](Ranks world) {
      auto init = [](torch::nn::Module& module) {
        torch::NoGradGuard no_grad;
        if (auto* linear = module.as<torch::nn::Linear>()) {
          linear->weight.copy_(testing::numbers(linear->weight.sizes()));
        }
      };
      TinyLM plain = make_tiny_lm({});
      plain->apply(init);
      FullyShardedDataParallel<TinyLM> model(make_tiny_lm({}), block_options(world, kFullShard));
      model.apply(init);
      expect_same(weights_of(model.sharded()), weights_of(*plain));
    });
  }
}

}  // namespace
}  // namespace fsdp
