// ShardedGradScaler over ranks: training with it equals training without it, and all ranks decide alike if a number is
// not finite on any of them.
#include "fsdp/grad_scaler.h"

#include <cmath>

#include "comm/testing/faulty_communicator.h"
#include "support/nets/tiny_lm.h"
#include "support/ranks/thread_ranks.h"
#include "support/training/sharding.h"

namespace fsdp {
namespace {

using testing::Bag;
using testing::make_tiny_lm;
using testing::numbers;
using testing::run_ranks;
using testing::TinyLM;
using testing::weights_of;
using Weights = std::map<std::string, torch::Tensor>;

struct Case {
  int world_size;
  ShardingStrategy strategy;
  bool use_orig_params;
};

std::string case_name(const ::testing::TestParamInfo<Case>& info) {
  const Case& c = info.param;
  return c10::str(to_string(c.strategy), "_", c.world_size, "ranks_", c.use_orig_params ? "orig" : "flat");
}

class GradScalerRanks : public ::testing::TestWithParam<Case> {
 protected:
  Options options(const std::shared_ptr<Communicator>& communicator) const {
    return testing::block_options(communicator, GetParam().strategy, GetParam().use_orig_params);
  }
  int world_size() const { return GetParam().world_size; }
  bool shards() const { return world_size() > 1 && GetParam().strategy != ShardingStrategy::kNoShard; }
};

constexpr int kSteps = 7;
// Whether the loss of one rank overflows in this step.
bool overflows(int step) { return step == 2 || step == 5; }

// Trains with clipping. Without a scaler, skips the steps that overflow.
Weights train(const Options& options, ShardedGradScaler* scaler) {
  TinyLM model = make_tiny_lm({}, torch::kDouble);
  auto sharded = fully_shard(*model, options);
  torch::optim::AdamW optimizer(sharded->parameters(), torch::optim::AdamWOptions(0.01));
  const int rank = options.communicator->rank(), size = options.communicator->size();
  for (int step = 0; step < kSteps; ++step) {
    if (!scaler && overflows(step)) continue;
    sharded->zero_grad();
    torch::Tensor loss = model->loss(testing::batch_of(rank, step));
    if (overflows(step) && rank == step % size) loss = loss * INFINITY;
    (scaler ? scaler->scale(loss) : loss).backward();
    if (scaler) scaler->unscale_(*sharded);
    sharded->clip_grad_norm_(0.5);
    if (scaler) {
      EXPECT_EQ(scaler->step(*sharded, optimizer), !overflows(step)) << "rank " << rank << ", step " << step;
      scaler->update();
    } else {
      optimizer.step();
    }
  }
  return weights_of(*sharded);
}

// Scales that are powers of two change no bit of a gradient in fp64.
TEST_P(GradScalerRanks, TrainsAsWithoutScaling) {
  run_ranks(world_size(), [&](std::shared_ptr<Communicator> communicator) {
    ShardedGradScaler scaler({.init_scale = 1024, .growth_interval = 2});
    const Weights want = train(options(communicator), nullptr);
    testing::expect_same(train(options(communicator), &scaler), want);
    EXPECT_EQ(scaler.scale(), 1024 * 2 * 0.5 * 2 * 0.5);
    EXPECT_EQ(scaler.growth_tracker(), 1);
  });
}

// Sets the gradient of each nonempty leaf of this rank to `value`.
void set_gradients(ShardedModule& sharded, double value) {
  for (const torch::Tensor& leaf : sharded.parameters()) {
    if (leaf.numel() > 0) leaf.mutable_grad() = torch::full_like(leaf, value).detach();
  }
}

// Sets the first element of this rank's first nonempty gradient. Returns false if the rank holds no elements.
bool spoil_gradient(ShardedModule& sharded, double value) {
  const auto slices = sharded.shard_slices();
  if (std::none_of(slices.begin(), slices.end(), [](const ShardSlice& slice) { return slice.end > slice.begin; })) {
    return false;
  }
  for (const torch::Tensor& leaf : sharded.parameters()) {
    if (leaf.numel() > 0) {
      leaf.mutable_grad()[0] = value;
      return true;
    }
  }
  return false;
}

// A model with fewer elements than ranks, so that some shards contain nothing but padding.
Bag small_bag() { return Bag(std::vector<torch::Tensor>{numbers({1}), numbers({2})}); }

TEST_P(GradScalerRanks, OneRankIsEnoughToSkip) {
  run_ranks(world_size(), [&](std::shared_ptr<Communicator> communicator) {
    Bag model = small_bag();
    auto sharded = fully_shard(*model, options(communicator));
    ShardedGradScaler scaler({.init_scale = 4, .growth_interval = 1});
    scaler.scale(torch::ones({}));
    double scale = 4;
    for (int offender = 0; offender < world_size(); ++offender) {
      for (double value : {double(INFINITY), -double(INFINITY), double(NAN), 1.0}) {
        const bool offends = communicator->rank() == offender;
        set_gradients(*sharded, 1);
        const bool spoilt = offends && spoil_gradient(*sharded, value) && !std::isfinite(value);
        // Comes from a gather, not from the scaler.
        const auto said = communicator->all_gather_bytes(spoilt ? "y" : "n", {"spoilt", 0, Pass::kUser});
        const bool bad = std::find(said.begin(), said.end(), "y") != said.end();
        const bool holds_all = !shards() || offender < 3;
        EXPECT_EQ(bad, holds_all && !std::isfinite(value)) << "the test spoils what it should";
        EXPECT_EQ(scaler.step(*sharded, [] {}), !bad) << "rank " << communicator->rank() << ", offender " << offender;
        scaler.update();
        scale *= bad ? 0.5 : 2;
        EXPECT_EQ(scaler.scale(), scale);
      }
    }
  });
}

TEST_P(GradScalerRanks, RanksWithoutGradientsFollow) {
  run_ranks(world_size(), [&](std::shared_ptr<Communicator> communicator) {
    Bag model = small_bag();
    auto sharded = fully_shard(*model, options(communicator));
    ShardedGradScaler scaler({.init_scale = 4});
    scaler.scale(torch::ones({}));
    if (communicator->rank() == 0) set_gradients(*sharded, NAN);
    EXPECT_FALSE(scaler.step(*sharded, [] {}));
    scaler.update();
    sharded->zero_grad();
    EXPECT_TRUE(scaler.step(*sharded, [] {})) << "no gradients on any rank";
    scaler.update();
    (model->named_parameters()["p0"].sum() * NAN).backward();
    const torch::Tensor held = model->named_parameters()["p0"].grad();
    model->zero_grad();
    EXPECT_TRUE(scaler.step(*sharded, [] {})) << "gradients cleared on the module";
  });
}

TEST_P(GradScalerRanks, ModelsDecideApart) {
  run_ranks(world_size(), [&](std::shared_ptr<Communicator> communicator) {
    Bag good = small_bag(), bad = small_bag();
    auto sharded_good = fully_shard(*good, options(communicator));
    auto sharded_bad = fully_shard(*bad, options(communicator));
    ShardedGradScaler scaler({.init_scale = 4, .growth_interval = 1});
    scaler.scale(torch::ones({}));
    set_gradients(*sharded_good, 8);
    set_gradients(*sharded_bad, communicator->rank() == 0 ? NAN : 1);
    scaler.unscale_(*sharded_bad);
    EXPECT_TRUE(scaler.step(*sharded_good, [] {}));
    EXPECT_FALSE(scaler.step(*sharded_bad, [] {}));
    scaler.update();
    EXPECT_EQ(scaler.scale(), 2);
    set_gradients(*sharded_bad, 1);
    EXPECT_TRUE(scaler.step(*sharded_bad, [] {})) << "what was found is forgotten after update()";
  });
}

// Shards in fp16: a scale that is too large for the gradients decreases on all ranks alike until they fit.
TEST_P(GradScalerRanks, FindsAScaleThatFitsFp16) {
  run_ranks(world_size(), [&](std::shared_ptr<Communicator> communicator) {
    Bag model(std::vector<torch::Tensor>{numbers({5, 3}).to(torch::kHalf)});
    auto sharded = fully_shard(*model, options(communicator));
    ShardedGradScaler scaler({.init_scale = 65536});
    int skipped = 0, stepped = 0;
    while (stepped == 0 && skipped < 20) {
      sharded->zero_grad();
      const torch::Tensor weight = model->named_parameters()["p0"];
      // The gradient of one element is 40, that of the others 0.25. 40 * 1024 is in the range of fp16, 40 * 2048 is
      // not.
      torch::Tensor factors = torch::full({5, 3}, 0.25);
      factors[3][1] = 40;
      scaler.scale((weight.to(torch::kFloat) * factors).sum()).backward();
      scaler.step(*sharded, [&] { ++stepped; }) ? 0 : ++skipped;
      if (stepped == 0) scaler.update();
    }
    EXPECT_EQ(skipped, 6);
    EXPECT_EQ(scaler.scale(), 1024);
    for (const torch::Tensor& leaf : sharded->parameters()) {
      if (leaf.grad().defined() && leaf.numel() > 0) {
        EXPECT_EQ(leaf.grad().scalar_type(), torch::kHalf);
        EXPECT_TRUE(((leaf.grad() == 0.25) | (leaf.grad() == 40) | (leaf.grad() == 0)).all().item<bool>());
      }
    }
  });
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (int world_size : {1, 2, 3, 4, 8}) {
    for (ShardingStrategy strategy : {ShardingStrategy::kFullShard, ShardingStrategy::kNoShard}) {
      for (bool orig : {true, false}) cases.push_back({world_size, strategy, orig});
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(All, GradScalerRanks, ::testing::ValuesIn(all_cases()), case_name);

// The gradients are already unscaled: no optimizer may step on them, and they must not be unscaled again.
TEST(GradScalerErrors, NothingStepsAfterAFailedExchange) {
  Options options = testing::one_rank_options_for_lists();
  options.communicator = std::make_shared<comm::FaultyCommunicator>(
      options.communicator, std::vector<comm::Fault>{{.message = "cable pulled"}});
  Bag model = small_bag();
  auto sharded = fully_shard(*model, options);
  ShardedGradScaler scaler;
  scaler.scale(torch::ones({}));
  set_gradients(*sharded, 65536);
  int steps = 0;
  testing::expect_error([&] { scaler.step(*sharded, [&] { ++steps; }); }, {"cable pulled"});
  EXPECT_FALSE(scaler.step(*sharded, [&] { ++steps; }));
  EXPECT_EQ(steps, 0);
  EXPECT_EQ(sharded->parameters()[0].grad()[0].item<double>(), 1);
}

}  // namespace
}  // namespace fsdp
