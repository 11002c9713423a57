// Tests whole runs over the stages of a pipeline: they leave what the same ranks leave without one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "formats/hugging_face/hf_folder.h"
#include "loop/train_rank.h"
#include "report_page/step_timeline.h"
#include "support/devices/simulated_device.h"
#include "support/devices/test_device.h"
#include "testing/tiny_gpt2.h"
#include "testing/tiny_llama.h"
#include "testing/whole_run.h"

namespace fsdp::trainer::pipeline_run_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::TemporaryFolder;
using Change = std::function<void(Config&)>;

// Without clipping, because the norm is added up in another order.
Config pipelined_run(const TemporaryFolder& folder) {
  Config config = small_run(folder);
  config.steps.gradient_accumulation_steps = 4;
  config.steps.clip_grad_norm = 0;
  return config;
}

std::map<std::string, at::Tensor> weights_of(const TemporaryFolder& folder, const std::string& name) {
  const formats::HfFolder saved(folder.path(name + "/final"));
  std::map<std::string, at::Tensor> weights;
  for (const auto& tensor : saved.tensors()) weights[tensor.name] = saved.tensor(tensor.name);
  return weights;
}

// `tolerance`: relative to the largest value.
void expect_same_weights(const TemporaryFolder& folder, const std::string& got, const std::string& want,
                         double tolerance) {
  const auto expected = weights_of(folder, want), actual = weights_of(folder, got);
  ASSERT_EQ(actual.size(), expected.size()) << got;
  for (const auto& [name, weight] : expected) {
    ASSERT_TRUE(actual.contains(name)) << got << ": " << name;
    // The gradient of the key's bias consists of rounding errors only.
    if (tolerance > 0 && name.ends_with("c_attn.bias")) continue;
    const double difference = (actual.at(name) - weight).abs().max().item<double>();
    EXPECT_LE(difference, tolerance * weight.abs().max().item<double>()) << got << ": " << name;
  }
}

void expect_same_metrics(const Left& got, const Left& want, double tolerance) {
  ASSERT_EQ(got.metrics.size(), want.metrics.size());
  for (const auto& [step, line] : want.metrics) {
    auto expected = nlohmann::json::parse(line);
    auto actual = nlohmann::json::parse(got.metrics.at(step));
    if (step != "eval") {
      const double bubble = actual.at("pipeline_bubble");
      EXPECT_TRUE(bubble > 0 && bubble < 1) << bubble;
    }
    for (auto* values : {&actual, &expected}) values->erase("pipeline_bubble");
    ASSERT_EQ(actual.size(), expected.size()) << line;
    for (const auto& [key, value] : expected.items()) {
      if (!value.is_number_float()) {
        EXPECT_EQ(actual.at(key), value) << key;
        continue;
      }
      const double number = value, allowed = key == "grad_norm" ? 1e-6 : tolerance;
      EXPECT_NEAR(actual.at(key).get<double>(), number, allowed * std::abs(number)) << step << ": " << key;
    }
  }
}

struct Mesh {
  const char* name;
  const char* schedule;
  int64_t degree;
  int64_t data_ranks;
  Change change = [](Config&) {};
};

Config with_pipeline(Config config, const char* schedule, int64_t degree) {
  config.parallelism.pipeline_degree = degree;
  config.parallelism.pipeline_schedule = schedule;
  return config;
}

class PipelinedRun : public ::testing::TestWithParam<Mesh> {};

TEST_P(PipelinedRun, LeavesWhatItsDataParallelRanksLeaveAlone) {
  const Mesh& mesh = GetParam();
  const TemporaryFolder folder;
  write_tiny_llama(folder.path("model"), /*tied=*/false, /*seed=*/11);
  Config config = pipelined_run(folder);
  mesh.change(config);
  const Left alone = run_whole(config, folder, "alone", static_cast<int>(mesh.data_ranks));
  const Left got = run_whole(with_pipeline(config, mesh.schedule, mesh.degree), folder, "stages",
                             static_cast<int>(mesh.data_ranks * mesh.degree));
  // Products may depend on the alignment of their operands, and with several data-parallel ranks the parameters of a
  // stage's root unit begin elsewhere in their buffer.
  const double tolerance = mesh.data_ranks > 1 ? 1e-6 : 0;
  expect_same_metrics(got, alone, tolerance);
  expect_same_weights(folder, "stages", "alone", tolerance);
}

INSTANTIATE_TEST_SUITE_P(
    Meshes, PipelinedRun,
    ::testing::Values(
        Mesh{"gpipe", "GPipe", 2, 1}, Mesh{"one_f_one_b", "1F1B", 4, 1}, Mesh{"over_data_ranks", "1F1B", 2, 2},
        Mesh{"interleaved", "Interleaved1F1B", 2, 1},
        Mesh{"zero_bubble", "InterleavedZeroBubble", 2, 1, [](Config& c) { c.steps.sync_each_batch = false; }},
        Mesh{"zbv", "ZBVZeroBubble", 2, 1, [](Config& c) { c.steps.sync_each_batch = false; }},
        Mesh{"gathered_once", "1F1B", 2, 2, [](Config& c) { c.sharding.strategy = ShardingStrategy::kShardGradOp; }},
        Mesh{"replicated", "1F1B", 2, 2, [](Config& c) { c.sharding.strategy = ShardingStrategy::kNoShard; }},
        Mesh{"hybrid", "1F1B", 2, 4,
             [](Config& c) {
               c.sharding.strategy = ShardingStrategy::kHybridShard;
               c.parallelism.replicate_degree = 2;
             }},
        Mesh{"hybrid_reduced_once", "1F1B", 2, 4,
             [](Config& c) {
               c.sharding.strategy = ShardingStrategy::kHybridShard;
               c.parallelism.replicate_degree = 2;
               c.steps.all_reduce_each_batch = false;
               c.sharding.wrap_policy = UnitsBy::kSize;
               c.sharding.size_min_params = 15;
             }},

        Mesh{"zb_h1", "InterleavedZeroBubble", 2, 1,
             [](Config& c) {
               c.parallelism.pipeline_layers_per_stage = 3;
               c.steps.sync_each_batch = false;
             }},
        Mesh{"recomputed", "1F1B", 2, 1, [](Config& c) { c.model.activation_checkpointing = true; }},
        Mesh{"fused_loss", "1F1B", 2, 1, [](Config& c) { c.model.fused_loss = true; }},
        Mesh{"by_document", "1F1B", 2, 1, [](Config& c) { c.model.attention_mask = AttentionMask::kBlockCausal; }},
        Mesh{"files", "Interleaved1F1B", 2, 1, [](Config& c) { c.sharding.offload_path = c.model.path; }},
        Mesh{"from_rank_0", "1F1B", 2, 2, [](Config& c) { c.sharding.sync_module_states = true; }},
        Mesh{"one_unit", "1F1B", 2, 1, [](Config& c) { c.sharding.wrap_policy = UnitsBy::kNone; }},
        Mesh{"flat", "1F1B", 2, 2,
             [](Config& c) {
               c.sharding.use_orig_params = false;
               c.sharding.wrap_policy = UnitsBy::kSize;
               c.sharding.size_min_params = 15;
             }},
        Mesh{"bf16", "1F1B", 2, 2, [](Config& c) { c.precision.dtype = c10::kBFloat16; }},
        Mesh{"fp16", "1F1B", 2, 2,
             [](Config& c) {
               c.precision.dtype = c10::kHalf;
               c.precision.fp16_init_scale = 1e30;  // overflows in the first steps
             }}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(PipelinedRunOnADevice, LeavesTheSameFilesAsOnTheCpu) {
  const TemporaryFolder folder;
  write_tiny_llama(folder.path("model"), /*tied=*/true, /*seed=*/11);
  for (const bool offload : {false, true}) {
    Config config = with_pipeline(pipelined_run(folder), "Interleaved1F1B", 2);
    config.sharding.cpu_offload = offload;
    const std::string cpu = offload ? "cpu_offload" : "cpu", device = offload ? "device_offload" : "device";
    const Left want = run_whole(config, folder, cpu, 4);
    testing::DeviceKindGuard simulated(testing::DeviceKind::kSimulated);
    const Left got = run_whole(config, folder, device, 4, [](int rank) { return testing::simulated_device(rank); });
    expect_same_metrics(got, want, 0);
    expect_same_weights(folder, device, cpu, 0);
  }
}

// The gradients of two stages are added up in another order, and clipping sees their sum once.
TEST(TiedEmbeddings, TrainInAPipelineAsWithoutOne) {
  for (const auto write : {write_tiny_llama, write_old_tiny_gpt2}) {
    const TemporaryFolder folder;
    write(folder.path("model"), /*tied=*/true, /*seed=*/11);
    Config config = pipelined_run(folder);
    config.steps.clip_grad_norm = 0.5;
    const Left alone = run_whole(config, folder, "alone", 2);
    const Left got = run_whole(with_pipeline(config, "1F1B", 2), folder, "stages", 4);
    expect_same_metrics(got, alone, 1e-5);
    expect_same_weights(folder, "stages", "alone", 1e-4);
    config.sharding.wrap_policy = UnitsBy::kNone;
    run_whole(with_pipeline(config, "Interleaved1F1B", 2), folder, "unwrapped", 4);
    expect_same_weights(folder, "unwrapped", "alone", 1e-4);
  }
}

// Each step is of one mesh; checkpoints are handed from one to the next.
TEST(PipelinedCheckpoints, AreContinuedOnAnyMesh) {
  const TemporaryFolder folder;
  write_tiny_llama(folder.path("model"), /*tied=*/false, /*seed=*/11);
  Config config = pipelined_run(folder);
  config.optimizer.lr_scheduler_type = LrSchedulerType::kConstant;
  config.steps.sync_each_batch = false;
  run_whole(config, folder, "whole", 1);
  const std::vector<RunOnRanks> parts = {{with_pipeline(config, "Interleaved1F1B", 2), 2},
                                         {config, 1},
                                         {with_pipeline(config, "1F1B", 4), 4},
                                         {with_pipeline(config, "ZBVZeroBubble", 2), 2}};
  expect_same_weights(folder, run_in_turns(parts, folder), "whole", 0);
}

// The names of the ranges in a row of a rank, in the order of time.
std::vector<std::string> names_in(const RankTimeline& rank, const std::string& row, const std::string& kind = "") {
  std::vector<std::string> names;
  for (const TimelineRow& one : rank.rows) {
    if (one.name != row) continue;
    for (const TimelineRange& range : one.ranges) {
      if (kind.empty() || range.kind == kind) names.push_back(range.name);
    }
  }
  return names;
}

TEST(PipelinedTrace, HasTheStagesOfEachRank) {
  const TemporaryFolder folder;
  write_tiny_llama(folder.path("model"), /*tied=*/true, /*seed=*/11);
  Config config = with_pipeline(pipelined_run(folder), "ZBVZeroBubble", 2);
  config.steps.max_steps = 2;
  config.steps.gradient_accumulation_steps = 2;
  config.trace.path = folder.path("trace.json");
  config.trace.first_step = 1;
  run_whole(config, folder, "traced", 2);
  const auto step = read_step_timeline(*config.trace.path);
  ASSERT_TRUE(step);
  ASSERT_EQ(step->ranks.size(), 2U);
  for (const auto& [rank, row] : {std::pair{0, "stage 0"}, {0, "stage 3"}, {1, "stage 1"}, {1, "stage 2"}}) {
    const RankTimeline& timeline = step->ranks[static_cast<size_t>(rank)];
    EXPECT_THAT(names_in(timeline, row, "stage_forward"), ::testing::ElementsAre("F0", "F1")) << row;
    std::vector<std::string> backward = names_in(timeline, row, "stage_backward");
    for (const std::string& name : names_in(timeline, row, "stage_weight_gradient")) backward.push_back(name);
    EXPECT_EQ(backward.size(), 2U) << row;  // B, or I and W
    EXPECT_EQ(names_in(timeline, row, "stage_input_gradient").size(),
              names_in(timeline, row, "stage_weight_gradient").size());
  }
  EXPECT_THAT(names_in(step->ranks[0], "step"), ::testing::ElementsAre("passes", "optimizer"));
  EXPECT_THAT(names_in(step->ranks[1], "stage 1", "stage_wait"),
              ::testing::Contains("wait for the activation of micro-batch 1"));
}

}  // namespace
}  // namespace fsdp::trainer::pipeline_run_test
