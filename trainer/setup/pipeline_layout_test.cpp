// Tests how models are cut into stages, and the errors for configs that do not fit.
#include "setup/pipeline_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "config/parallel_degrees.h"
#include "models/presets.h"
#include "models/registry.h"
#include "support/faults/error_of.h"
#include "testing/tiny_llama.h"

namespace fsdp::trainer::pipeline_layout_test {
namespace {

using ::testing::AllOf;
using testing::error_of;
using ::testing::HasSubstr;
using ::testing::Not;

Config pipelined(const char* schedule, int64_t degree, int64_t micro_batches) {
  Config config;
  config.data.max_seq_length = 9;
  config.parallelism.pipeline_degree = degree;
  config.parallelism.pipeline_schedule = schedule;
  config.steps.gradient_accumulation_steps = micro_batches;
  return config;
}

std::unique_ptr<TrainedModel> llama(int64_t blocks, bool tied = false) {
  nlohmann::json config = tiny_llama_config(tied);
  config["num_hidden_layers"] = blocks;
  return make_trained_model(
      models::make_uninitialized<models::PretrainedModel>(config, at::TensorOptions(at::kFloat).device(at::kMeta)),
      pipelined("1F1B", 1, 1));
}

std::vector<std::string> texts_of(const PipelineLayout& layout) {
  std::vector<std::string> texts;
  for (const models::StagePart& part : layout.parts) texts.push_back(part_text(part));
  return texts;
}

using Texts = std::vector<std::string>;

TEST(PipelineLayouts, FollowTheKeys) {
  const auto model = llama(6);
  EXPECT_FALSE(pipeline_layout(pipelined("1F1B", 1, 4), *model));
  EXPECT_EQ(texts_of(*pipeline_layout(pipelined("1F1B", 2, 4), *model)),
            (Texts{"embedding, blocks 0 to 2", "blocks 3 to 5, head"}));
  Config config = pipelined("GPipe", 3, 4);
  config.parallelism.pipeline_first_stage_less_layers = 0;
  config.parallelism.pipeline_last_stage_less_layers = 0;
  EXPECT_EQ(texts_of(*pipeline_layout(config, *model)),
            (Texts{"embedding, blocks 0 to 1", "blocks 2 to 3", "blocks 4 to 5, head"}));
  const auto interleaved = pipeline_layout(pipelined("Interleaved1F1B", 2, 4), *model);
  EXPECT_EQ(texts_of(*interleaved), (Texts{"embedding, block 0", "blocks 1 to 2", "blocks 3 to 4", "block 5, head"}));
  EXPECT_EQ(interleaved->schedule.stages_of(1), (std::vector<int>{1, 3}));
  EXPECT_EQ(pipeline_layout(pipelined("ZBVZeroBubble", 2, 4), *model)->schedule.stages_of(0), (std::vector<int>{0, 3}));
  // As many stages as blocks, and two more, for embedding and head.
  EXPECT_EQ(texts_of(*pipeline_layout(pipelined("1F1B", 8, 8), *model)).back(), "head");
}

TEST(PipelineLayouts, TakeLayersPerStage) {
  Config config = pipelined("Interleaved1F1B", 2, 4);
  config.parallelism.pipeline_layers_per_stage = 2;
  EXPECT_EQ(pipeline_layout(config, *llama(6))->schedule.stages(), 4);
  config.parallelism.pipeline_layers_per_stage = 1;
  EXPECT_EQ(pipeline_layout(config, *llama(6))->stages_per_rank(), 4);
  config.parallelism.pipeline_layers_per_stage = 3;
  EXPECT_THAT(error_of([&] { pipeline_layout(config, *llama(6)); }),
              AllOf(HasSubstr("key \"pipeline_parallel_layers_per_stage\": 3 makes 3 stage(s) of 8 blocks"),
                    HasSubstr("a multiple of \"pipeline_parallel_degree\", 2")));
}

TEST(PipelineLayouts, SimulateTheBubble) {
  // (p - 1) / (m + p - 1), as all stages take equally long.
  EXPECT_NEAR(pipeline_layout(pipelined("1F1B", 2, 4), *llama(6))->bubble, 1.0 / 5, 1e-12);
  EXPECT_NEAR(pipeline_layout(pipelined("GPipe", 4, 8), *llama(6))->bubble, 3.0 / 11, 1e-12);
  EXPECT_GT(pipeline_layout(pipelined("1F1B", 2, 4), *llama(7))->bubble, 1.0 / 5);
}

struct Refusal {
  const char* schedule;
  int64_t degree, micro_batches;
  std::vector<const char*> words;
};

TEST(PipelineLayouts, RefuseWithKeyValueAndWhatIsAccepted) {
  const auto model = llama(6);
  for (const Refusal& refusal : {
           Refusal{"1F1B", 9, 9, {"key \"pipeline_parallel_degree\": 9 makes 9 stages", "6 blocks", "fewer stages"}},
           Refusal{"Interleaved1F1B", 5, 5, {"\"pipeline_parallel_degree\": 5 makes 10 stages", "Interleaved1F1B"}},
           Refusal{"Interleaved1F1B",
                   2,
                   5,
                   {"key \"pipeline_parallel_schedule\": \"Interleaved1F1B\"", "\"gradient_accumulation_steps\" 5",
                    "4 do"}},
       }) {
    const std::string error =
        error_of([&] { pipeline_layout(pipelined(refusal.schedule, refusal.degree, refusal.micro_batches), *model); });
    for (const char* word : refusal.words) EXPECT_THAT(error, HasSubstr(word));
    EXPECT_THAT(error, Not(HasSubstr("\n")));
  }
  Config flat = pipelined("1F1B", 2, 4);
  flat.sharding.use_orig_params = false;
  EXPECT_TRUE(pipeline_layout(flat, *model));
  EXPECT_THAT(error_of([&] { pipeline_layout(flat, *llama(6, /*tied=*/true)); }),
              AllOf(HasSubstr("key \"use_orig_params\": false"), HasSubstr("accepted: true")));
}

TEST(PipelineLayouts, RefuseOtherKindsOfModels) {
  for (const char* preset : {"t5-611m", "deepvit-s", "dhen-550m"}) {
    Config config;
    config.data.train_batch_size = 1;
    const auto model =
        make_trained_model(models::make_uninitialized<models::PretrainedModel>(
                               models::find_preset(preset).config, at::TensorOptions(at::kFloat).device(at::kMeta)),
                           config);
    EXPECT_THAT(error_of([&] { pipeline_layout(pipelined("1F1B", 2, 4), *model); }),
                AllOf(HasSubstr("key \"pipeline_parallel_degree\": 2 does not apply"), HasSubstr("accepted: 1")))
        << preset;
  }
}

ParallelDegrees degrees(ShardingStrategy strategy, const ParallelismConfig& parallelism, int64_t world_size,
                        std::optional<int64_t> factor = std::nullopt) {
  Config config;
  config.sharding.strategy = strategy;
  config.sharding.factor = factor;
  config.parallelism = parallelism;
  return parallel_degrees(config, world_size);
}

TEST(ParallelDegreesOfARun, DivideTheRanks) {
  const ParallelDegrees plain = degrees(ShardingStrategy::kFullShard, {}, 6);
  EXPECT_EQ(plain.pipeline, 1);
  EXPECT_EQ(plain.data, 6);
  EXPECT_EQ(plain.replicas(), 1);
  EXPECT_FALSE(plain.shard_group);
  const ParallelDegrees hybrid =
      degrees(ShardingStrategy::kHybridShard, {.replicate_degree = 2, .pipeline_degree = 3}, 12);
  EXPECT_EQ(hybrid.data, 4);
  EXPECT_EQ(hybrid.shard_group, 2);
  EXPECT_EQ(hybrid.replicas(), 2);
  EXPECT_EQ(degrees(ShardingStrategy::kHybridShard, {.shard_degree = 4}, 8, 4).replicas(), 2);
  EXPECT_EQ(degrees(ShardingStrategy::kFullShard, {.replicate_degree = 1, .shard_degree = 8}, 8).shard_group, 8);
  EXPECT_EQ(degrees(ShardingStrategy::kNoShard, {.replicate_degree = 4}, 4).shard_group, 1);
}

TEST(ParallelDegreesOfARun, RefuseWhatDoesNotFit) {
  const auto error = [](ShardingStrategy strategy, const ParallelismConfig& parallelism,
                        std::optional<int64_t> factor = std::nullopt) {
    return error_of([&] { degrees(strategy, parallelism, 4, factor); });
  };
  EXPECT_THAT(error(ShardingStrategy::kFullShard, {.pipeline_degree = 3}),
              HasSubstr("key \"pipeline_parallel_degree\": 3 does not divide 4 rank(s); accepted: 1, 2, 4"));
  EXPECT_THAT(
      error(ShardingStrategy::kHybridShard, {.replicate_degree = 3}),
      HasSubstr("\"data_parallel_replicate_degree\": 3 does not divide 4 data-parallel rank(s); accepted: 1, 2"));
  EXPECT_THAT(error(ShardingStrategy::kFullShard, {.replicate_degree = 2}), HasSubstr("accepted: 1 or null"));
  EXPECT_THAT(error(ShardingStrategy::kNoShard, {.replicate_degree = 2}), HasSubstr("accepted: 4 or null"));
  EXPECT_THAT(error(ShardingStrategy::kFullShard, {.shard_degree = 2}),
              AllOf(HasSubstr("\"data_parallel_shard_degree\": 2"), HasSubstr("accepted: 4 or null")));
  EXPECT_THAT(error(ShardingStrategy::kHybridShard, {.shard_degree = 3}), HasSubstr("accepted: 1, 2, 4 or null"));
  EXPECT_THAT(error(ShardingStrategy::kHybridShard, {.shard_degree = 2}, 4),
              AllOf(HasSubstr("key \"data_parallel_shard_degree\" is 2, but \"sharding_factor\" is 4"),
                    HasSubstr("the keys must agree")));
  EXPECT_THAT(error(ShardingStrategy::kHybridShard, {.replicate_degree = 4, .shard_degree = 2}),
              HasSubstr("key \"data_parallel_replicate_degree\" is 4, but \"data_parallel_shard_degree\" is 2"));
}

}  // namespace
}  // namespace fsdp::trainer::pipeline_layout_test
