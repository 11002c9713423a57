// The times of real plans: conservation, the order of variants, and volumes of communication by closed formulas.
#include "planner/pricing/time_forecast.h"

#include <gtest/gtest.h>

#include "planner/run/planned_run.h"
#include "planner/testing/small_models.h"

namespace fsdp::planner::time_forecast_test {
namespace {

using nlohmann::json;

constexpr int kSteps = 3;
constexpr int64_t kWidth = 1024, kInner = 2816, kVocabulary = 4096, kLayers = 6;
constexpr int64_t kBlock = 4 * kWidth * kWidth + 3 * kWidth * kInner + 2 * kWidth;
constexpr int64_t kParameters = kLayers * kBlock + 2 * kVocabulary * kWidth + kWidth;

// A Llama whose sizes divide by all numbers of ranks here.
json config_with(const json& more = json::object()) {
  json config = {{"model",
                  {{"model_type", "llama"},
                   {"architectures", {"LlamaForCausalLM"}},
                   {"hidden_size", kWidth},
                   {"intermediate_size", kInner},
                   {"num_hidden_layers", kLayers},
                   {"num_attention_heads", 8},
                   {"vocab_size", kVocabulary}}},
                 {"max_seq_length", 512},
                 {"train_batch_size", 4},
                 {"check_memory", false}};
  config.update(more);
  return config;
}

TimeForecast forecast_of(const json& config, const std::string& cluster_name) {
  const Cluster cluster = parse_cluster(cluster_name);
  PlannedRun run(read_json(config), {.has_device = true,
                                     .layout = {.world = cluster.ranks(), .per_host = cluster.ranks_per_host},
                                     .matmul_workspace = cluster.device->matmul_workspace});
  for (int step = 0; step < kSteps; ++step) run.step();
  return forecast_time(run.tape(), run.step_bounds(), cluster, {});
}

double step_seconds(const json& more, const std::string& cluster) {
  return forecast_of(config_with(more), cluster).steps.back().seconds();
}

int64_t sent(const TimeForecast& forecast, comm::CollectiveKind kind) {
  int64_t sent = 0;
  for (const CollectiveSum& sum : forecast.collectives) sent += sum.kind == kind ? sum.sent : 0;
  return sent;
}

class TimeOfModels : public ::testing::TestWithParam<std::string> {};

TEST_P(TimeOfModels, PartsAddUp) {
  const TimeForecast forecast =
      forecast_of(small_config(GetParam(), {{"dtype", "bf16"}, {"device", "auto"}}), "2x4xa100-80");
  const PricedTape& priced = forecast.priced;
  ASSERT_EQ(forecast.steps.size(), kSteps);
  for (size_t step = 0; step < kSteps; ++step) {
    const double begin = forecast.result.items[priced.step_marks[step]].end;
    const double end = forecast.result.items[priced.step_marks[step + 1]].end;
    for (const std::vector<StreamSegment>& stream : forecast.result.streams) {
      EXPECT_NEAR(use_between(stream, begin, end).total(), end - begin, 1e-9);
    }
    const StepTime& time = forecast.steps[step];
    EXPECT_NEAR(time.seconds() - time.spread, end - begin, 1e-9);
    double kinds = 0;
    for (const double seconds : time.by_kind) kinds += seconds;
    EXPECT_NEAR(kinds, time.compute, 1e-9);
  }
  const PhaseTime& phases = forecast.phases;
  EXPECT_NEAR(phases.forward + phases.backward + phases.update,
              forecast.steps.back().seconds() - forecast.steps.back().spread, 1e-9);
  EXPECT_GE(forecast.steps.back().compute, forecast.least);
  EXPECT_GT(forecast.least, 0);
}

INSTANTIATE_TEST_SUITE_P(, TimeOfModels, ::testing::ValuesIn(small_model_names()),
                         [](const auto& info) { return info.param; });

// What each rank of a group sends of so many parameters in bf16.
int64_t part_of(int64_t parameters, int ranks) { return parameters * 2 / ranks * (ranks - 1); }

// All units are gathered in forward. In backward, the head and the root are still gathered, and the gradient of the
// embedding does not depend on its weights, which leaves the blocks.
constexpr int64_t kGathered = kParameters + kLayers * kBlock;

TEST(TimeForecast, VolumeOfFullShard) {
  const TimeForecast forecast = forecast_of(config_with({{"dtype", "bf16"}}), "8xa100-80");
  EXPECT_EQ(sent(forecast, comm::CollectiveKind::kAllGather), part_of(kGathered, 8));
  EXPECT_EQ(sent(forecast, comm::CollectiveKind::kReduceScatter), part_of(kParameters, 8));
  EXPECT_EQ(sent(forecast, comm::CollectiveKind::kAllReduce), 0);
}

TEST(TimeForecast, VolumeOfShardedGradients) {
  const TimeForecast forecast =
      forecast_of(config_with({{"dtype", "bf16"}, {"sharding_strategy", "shard_grad_op"}}), "8xa100-80");
  EXPECT_EQ(sent(forecast, comm::CollectiveKind::kAllGather), part_of(kParameters, 8));
  EXPECT_EQ(sent(forecast, comm::CollectiveKind::kReduceScatter), part_of(kParameters, 8));
}

TEST(TimeForecast, VolumeOfReplicas) {
  const TimeForecast forecast =
      forecast_of(config_with({{"dtype", "bf16"}, {"sharding_strategy", "no_shard"}}), "8xa100-80");
  EXPECT_EQ(sent(forecast, comm::CollectiveKind::kAllGather), 0);
  EXPECT_EQ(sent(forecast, comm::CollectiveKind::kReduceScatter), 0);
  EXPECT_EQ(sent(forecast, comm::CollectiveKind::kAllReduce), 2 * part_of(kParameters, 8));
}

// Shards of 4 in each of 2 hosts: pairs of replicas reduce a quarter of the gradients across the hosts.
TEST(TimeForecast, VolumeOfHybridShard) {
  const TimeForecast forecast = forecast_of(
      config_with({{"dtype", "bf16"}, {"sharding_strategy", "hybrid_shard"}, {"sharding_factor", 4}}), "2x4xa100-80");
  EXPECT_EQ(sent(forecast, comm::CollectiveKind::kAllGather), part_of(kGathered, 4));
  EXPECT_EQ(sent(forecast, comm::CollectiveKind::kReduceScatter), part_of(kParameters, 4));
  EXPECT_EQ(sent(forecast, comm::CollectiveKind::kAllReduce), 2 * part_of(kParameters / 4, 2));
  for (const CollectiveSum& sum : forecast.collectives) {
    const bool of_replicas = sum.kind == comm::CollectiveKind::kAllReduce;
    EXPECT_EQ(sum.topology.ranks, of_replicas ? 2 : 4);
    EXPECT_EQ(sum.topology.nodes, of_replicas ? 2 : 1);
  }
}

TEST(TimeForecast, PrefetchIsNotSlower) {
  for (const char* cluster : {"8xa100-80", "4x8xa100-80"}) {
    const double without = step_seconds({{"backward_prefetch", "none"}, {"forward_prefetch", false}}, cluster);
    const double with = step_seconds({{"backward_prefetch", "backward_pre"}, {"forward_prefetch", true}}, cluster);
    EXPECT_LT(with, without) << cluster;
  }
}

TEST(TimeForecast, HalfPrecisionIsFaster) {
  EXPECT_LT(step_seconds({{"dtype", "bf16"}}, "8xa100-80"), step_seconds({{"dtype", "fp32"}}, "8xa100-80"));
}

TEST(TimeForecast, MoreHostsCommunicateLonger) {
  double before = 0;
  for (const char* cluster : {"8xa100-80", "2x8xa100-80", "8x8xa100-80"}) {
    double seconds = 0;
    for (const CollectiveSum& sum : forecast_of(config_with(), cluster).collectives) seconds += sum.alone;
    EXPECT_GT(seconds, before) << cluster;
    before = seconds;
  }
}

TEST(TimeForecast, RecomputationTakesTime) {
  const double without = step_seconds(json::object(), "8xa100-80");
  EXPECT_GT(step_seconds({{"activation_checkpointing", true}}, "8xa100-80"), without);
}

TEST(TimeForecast, ALimitOfGathersIsNotFaster) {
  const double without = step_seconds({{"limit_all_gathers", false}}, "4x8xa100-80");
  EXPECT_GE(step_seconds({{"limit_all_gathers", true}}, "4x8xa100-80"), without - 1e-9);
}

TEST(TimeForecast, MoreSamplesTakeLonger) {
  EXPECT_GT(step_seconds({{"train_batch_size", 8}}, "8xa100-80"), step_seconds({{"train_batch_size", 4}}, "8xa100-80"));
}

TEST(TimeForecast, TheSlowestOfMoreRanksIsSlower) {
  const StepTime few = forecast_of(config_with(), "2xa100-80").steps.back();
  const StepTime many = forecast_of(config_with(), "8xa100-80").steps.back();
  EXPECT_GT(many.spread / many.compute, few.spread / few.compute);
}

}  // namespace
}  // namespace fsdp::planner::time_forecast_test
