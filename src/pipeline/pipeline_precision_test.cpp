// Tests mixed precision, scaled losses, recomputation and shards in files in stages, against training without stages.
#include <limits>
#include <string>
#include <vector>

#include "fsdp/pipeline.h"
#include "pipeline/testing/stages.h"
#include "support/files/temporary_folder.h"
#include "support/ranks/thread_ranks.h"

namespace fsdp::pipeline::pipeline_precision_test {
namespace {

using testing::expect_equal;
using testing::Ranks;
using testing::run_ranks;
using testing::StagesOfRank;
using testing::train_sharded;
using testing::Training;
using testing::TwoStages;
using enum ShardingStrategy;

constexpr int kMicroBatches = 4;

struct Order {
  const char* schedule;
  int ranks;
  int stages_per_rank;
};
const std::vector<Order> kOrders{{"GPipe", 2, 1}, {"1F1B", 3, 1}, {"Interleaved1F1B", 2, 2}};

Options in(at::ScalarType dtype, ShardingStrategy strategy) {
  Options options;
  options.sharding_strategy = strategy;
  options.param_dtype = dtype;
  options.reduce_dtype = at::kFloat;
  return options;
}

GradScalerOptions scaling(double scale) {
  GradScalerOptions options;
  options.init_scale = scale;
  options.growth_interval = 2;
  return options;
}

// Trains without stages, and with each schedule. `scale`: of the losses; 0: they are not scaled.
void expect_alike(const Options& options, bool recomputes, double scale = 0) {
  Training alone;
  double last_scale = 0;
  run_ranks(1, [&](Ranks world) {
    ShardedGradScaler scaler(scaling(scale > 0 ? scale : 1));
    alone = train_sharded(world, kMicroBatches, options, scale > 0 ? &scaler : nullptr);
    last_scale = scaler.scale();
  });
  for (const Order& order : kOrders) {
    run_ranks(order.ranks, [&](Ranks world) {
      const auto schedule = make_pipeline_schedule(order.schedule, order.ranks, order.stages_per_rank, kMicroBatches);
      StagesOfRank stages(world, schedule, options);
      if (recomputes) stages.recompute();
      ShardedGradScaler scaler(scaling(scale > 0 ? scale : 1));
      expect_equal(stages.train(scale > 0 ? &scaler : nullptr), alone, order.schedule);
      EXPECT_EQ(scaler.scale(), last_scale) << order.schedule;
    });
  }
}

TEST(PipelinePrecision, EqualsThatWithoutStages) {
  for (const ShardingStrategy strategy : {kShardGradOp, kFullShard}) {
    for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
      for (const bool recomputes : {false, true}) expect_alike(in(dtype, strategy), recomputes);
    }
  }
}

// The first scale overflows fp16 in some stages, so that all skip the first step.
TEST(PipelinePrecision, ScaledLossesEqualThoseWithoutStages) {
  for (const double scale : {64.0, 16777216.0}) expect_alike(in(at::kHalf, kShardGradOp), false, scale);
}

TEST(PipelinePrecision, WithShardsInFilesEqualsThatWithoutStages) {
  const testing::TemporaryFolder folder;
  Options options = in(at::kBFloat16, kFullShard);
  options.offload_path = folder.path().string();
  expect_alike(options, true);
}

TEST(PipelineScaler, AnInfiniteGradientInOneStageSkipsTheStepOfAll) {
  for (const int where : {0, 3}) {
    run_ranks(4, [&](Ranks world) {
      ShardedGradScaler scaler(scaling(64));
      std::optional<TwoStages> stages;
      stages.emplace(
          world, "1F1B", 2,
          [&](const auto&, int) -> std::vector<at::Tensor> { return {stages->linear->forward(torch::ones({2, 3}))}; },
          [&](const auto& inputs, int) -> std::vector<at::Tensor> {
            return {scaler.scale(stages->linear->forward(inputs.at(0)).sum())};
          });
      stages->pipeline->step();
      if (world->rank() == where) {
        for (const at::Tensor& leaf : stages->sharded->parameters()) {
          if (leaf.grad().defined()) leaf.mutable_grad().fill_(std::numeric_limits<float>::infinity());
        }
      }
      stages->pipeline->unscale_(scaler);
      bool stepped = false;
      EXPECT_FALSE(scaler.step(*stages->sharded, [&] { stepped = true; })) << world->rank();
      EXPECT_FALSE(stepped);
      scaler.update();
      EXPECT_EQ(scaler.scale(), 32) << world->rank();
    });
  }
}

TEST(PipelineScaler, LossesThatNobodyScaledAreAnErrorOnAllRanks) {
  const auto errors = testing::errors_of_ranks(2, [](Ranks world) {
    ShardedGradScaler scaler;
    StagesOfRank stages(world, make_pipeline_schedule("1F1B", 2, 1, 1), kShardGradOp);
    stages.pipeline().step();
    stages.pipeline().unscale_(scaler);
  });
  EXPECT_THAT(errors, ::testing::Each(::testing::HasSubstr("unscale_() was called before scale()")));
}

}  // namespace
}  // namespace fsdp::pipeline::pipeline_precision_test
