// The norm is that of the current gradients, whatever was done to them since their reduction. The norm computed by
// reductions is the same as long as the gradients were not written since.
#include <functional>
#include <limits>

#include "engine/engine.h"
#include "fsdp/grad_scaler.h"
#include "support/nets/tiny_lm.h"
#include "support/ranks/thread_ranks.h"
#include "support/training/sharding.h"

namespace fsdp {
namespace {

using testing::batch_of;
using testing::make_tiny_lm;

using Ranks = std::shared_ptr<Communicator>;

struct Setting {
  const char* name;
  void (*set)(Options&);
};
const std::vector<Setting> kSettings = {
    {"full_shard", [](Options&) {}},
    {"no_shard", [](Options& options) { options.sharding_strategy = ShardingStrategy::kNoShard; }},
    {"flat_parameters", [](Options& options) { options.use_orig_params = false; }},
    {"bf16_gradients",
     [](Options& options) {
       options.param_dtype = at::kBFloat16;
       options.keep_low_precision_grads = true;
     }},
};

Options options_over(const Ranks& world, const Setting& setting) {
  Options options = testing::block_options(world);
  setting.set(options);
  return options;
}

void backward(testing::TinyLM& model, int rank, int64_t step = 0) {
  model->forward(batch_of(rank, step)).to(at::kFloat).pow(2).mean().backward();
}

// Returns how many of the rank's gradients have a norm known from their reductions, and how many gradients it has.
std::pair<int, int> known_of_all(ShardedModule& sharded) {
  int known = 0, all = 0;
  for (const auto& unit : sharded.engine().units()) {
    for (size_t i = 0; i < unit->flat_parameters().size(); ++i) {
      known += unit->gradients().of(i)->leaves().summary().known;
      ++all;
    }
  }
  return {known, all};
}

void expect_all_known(ShardedModule& sharded) {
  const auto [known, all] = known_of_all(sharded);
  EXPECT_EQ(known, all);
}

double norm_of_leaves(ShardedModule& sharded, Communicator& world, bool replicated) {
  double squares = 0;
  for (const at::Tensor& leaf : sharded.parameters()) {
    if (leaf.grad().defined()) squares += leaf.grad().to(at::kDouble).square().sum().item<double>();
  }
  double total = 0;
  for (const std::string& one : world.all_gather_bytes(std::to_string(squares), {"norm", 0, Pass::kUser})) {
    total = replicated ? squares : total + std::stod(one);
  }
  return std::sqrt(total);
}

class GradientNorm : public ::testing::TestWithParam<std::tuple<int, Setting>> {
 protected:
  // Checks the norms after a backward on all ranks and after `change`, which modifies the gradients. Before that, runs
  // a backward in which reductions are not asked for norms.
  void expect_true_norm_after(const std::function<void(ShardedModule&, testing::TinyLM&, int rank)>& change) {
    testing::run_ranks(ranks_, [&](Ranks world) {
      auto model = make_tiny_lm({});
      auto sharded = fully_shard(*model, options_over(world, setting_));
      backward(model, world->rank());
      EXPECT_EQ(known_of_all(*sharded).first, 0);
      const double first = sharded->grad_norm().item<double>();
      EXPECT_EQ(sharded->reduced_grad_norm().item<double>(), first);  // reads the gradients
      sharded->zero_grad();
      sharded->set_reductions_see_norm(true);
      backward(model, world->rank());
      expect_all_known(*sharded);
      EXPECT_NEAR(sharded->reduced_grad_norm().item<double>(), first, 1e-5 * first);
      change(*sharded, model, world->rank());
      const double want = norm_of_leaves(*sharded, *world, std::string(setting_.name) == "no_shard");
      EXPECT_NEAR(sharded->grad_norm().item<double>(), want, 1e-5 * want);
      EXPECT_NEAR(sharded->reduced_grad_norm().item<double>(), want, 1e-5 * want);
    });
  }

  const int ranks_ = std::get<0>(GetParam());
  const Setting& setting_ = std::get<1>(GetParam());
};

TEST_P(GradientNorm, OfGradientsAsTheyCame) {
  expect_true_norm_after([](ShardedModule&, testing::TinyLM&, int) {});
}

TEST_P(GradientNorm, WhenWritten) {
  expect_true_norm_after([](ShardedModule& sharded, testing::TinyLM&, int) {
    for (const at::Tensor& leaf : sharded.parameters()) {
      if (leaf.grad().defined()) leaf.mutable_grad().mul_(2);
    }
  });
  expect_true_norm_after([](ShardedModule& sharded, testing::TinyLM&, int) {  // as torch::nn::utils does
    for (const at::Tensor& leaf : sharded.parameters()) {
      if (leaf.grad().defined()) leaf.grad().data().mul_(2);
    }
  });
  expect_true_norm_after([](ShardedModule& sharded, testing::TinyLM&, int) {
    for (const at::Tensor& leaf : sharded.parameters()) {
      if (leaf.grad().defined()) leaf.grad().view({-1}).fill_(3);
    }
  });
}

TEST_P(GradientNorm, WhenReplaced) {
  expect_true_norm_after([](ShardedModule& sharded, testing::TinyLM&, int) {
    for (const at::Tensor& leaf : sharded.parameters()) {
      if (leaf.grad().defined() && leaf.numel() > 0) leaf.mutable_grad() = torch::full_like(leaf.grad(), 2);
    }
  });
  expect_true_norm_after([](ShardedModule& sharded, testing::TinyLM&, int) {
    const std::vector<at::Tensor> leaves = sharded.parameters();
    for (size_t i = 0; i < leaves.size(); i += 2) leaves[i].mutable_grad().reset();
  });
}

TEST_P(GradientNorm, WhenMoreIsAdded) {
  expect_true_norm_after([](ShardedModule&, testing::TinyLM& model, int rank) { backward(model, rank, 1); });
}

TEST_P(GradientNorm, AfterZeroGrad) {
  expect_true_norm_after([](ShardedModule& sharded, testing::TinyLM& model, int rank) {
    sharded.clip_grad_norm_(1e-3);
    sharded.zero_grad();
    backward(model, rank, 1);
    expect_all_known(sharded);
  });
}

TEST_P(GradientNorm, AfterAHook) {
  testing::run_ranks(ranks_, [&](Ranks world) {
    auto model = make_tiny_lm({});
    auto sharded = fully_shard(*model, options_over(world, setting_));
    sharded->set_reductions_see_norm(true);
    sharded->hooks().set_gradient_hook([](const ReducedGradient& gradient) { gradient.gradient.mul_(3); });
    for (int64_t step = 0; step < 2; ++step) {
      sharded->zero_grad();
      backward(model, world->rank(), step);
      const double want = norm_of_leaves(*sharded, *world, std::string(setting_.name) == "no_shard");
      EXPECT_NEAR(sharded->grad_norm().item<double>(), want, 1e-5 * want);
      EXPECT_NEAR(sharded->reduced_grad_norm().item<double>(), want, 1e-5 * want);
    }
  });
}

// If one rank's gradient is infinite, no rank steps.
TEST_P(GradientNorm, ThatIsInfiniteStopsTheScaler) {
  testing::run_ranks(ranks_, [&](Ranks world) {
    auto model = make_tiny_lm({});
    auto sharded = fully_shard(*model, options_over(world, setting_));
    sharded->set_reductions_see_norm(true);
    ShardedGradScaler scaler(GradScalerOptions{.init_scale = 8});
    for (int step = 0; step < 3; ++step) {
      sharded->zero_grad();
      at::Tensor loss = model->forward(batch_of(world->rank(), step)).to(at::kFloat).pow(2).mean();
      if (step == 1 && world->rank() == 0) loss = loss * std::numeric_limits<float>::infinity();
      scaler.scale(loss).backward();
      const double norm = sharded->reduced_grad_norm().item<double>();
      EXPECT_EQ(std::isfinite(norm), step != 1) << "step " << step;
      if (step != 0) {  // in step 0, step() unscales; later it leaves gradients as they are
        const double unscaled = scaler.unscaled_grad_norm(*sharded);
        EXPECT_TRUE(unscaled == norm / scaler.scale() || step == 1);
        expect_all_known(*sharded);  // the gradients were not written
      }
      bool stepped = false;
      scaler.step(*sharded, [&] { stepped = true; });
      scaler.update();
      EXPECT_EQ(stepped, step != 1) << "step " << step;
    }
    EXPECT_EQ(scaler.state_dict()->scale, 4);
  });
}

INSTANTIATE_TEST_SUITE_P(All, GradientNorm,
                         ::testing::Combine(::testing::Values(1, 2, 3), ::testing::ValuesIn(kSettings)),
                         [](const auto& info) {
                           return c10::str(std::get<1>(info.param).name, "_", std::get<0>(info.param), "ranks");
                         });

}  // namespace
}  // namespace fsdp
