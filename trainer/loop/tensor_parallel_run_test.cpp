// Tests whole runs whose weights are split over ranks: they leave what the same data-parallel ranks leave without that.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <nlohmann/json.hpp>

#include "convert/convert.h"
#include "formats/hugging_face/hf_folder.h"
#include "loop/train_rank.h"
#include "models/testing/small_models.h"
#include "support/faults/error_of.h"
#include "testing/tiny_gpt2.h"
#include "testing/tiny_llama.h"
#include "testing/whole_run.h"

namespace fsdp::trainer::tensor_parallel_run_test {
namespace {

using ::testing::HasSubstr;
using testing::TemporaryFolder;
using Change = std::function<void(Config&)>;

// A Llama with three heads of keys, so that two ranks get different numbers of them.
void write_llama(const std::string& folder, bool tied) {
  nlohmann::json config = tiny_llama_config(tied);
  config["num_key_value_heads"] = 3;
  write_tiny_model(folder, config, /*seed=*/11);
}

// With the losses of its routers.
void write_experts(const std::string& folder, bool tied) {
  nlohmann::json config = models::small_decoder("qwen2_moe", "Qwen2MoeForCausalLM",
                                                {{"num_experts", 5},
                                                 {"num_experts_per_tok", 2},
                                                 {"moe_intermediate_size", 7},
                                                 {"shared_expert_intermediate_size", 9},
                                                 {"output_router_logits", true},
                                                 {"vocab_size", 257}});
  config["tie_word_embeddings"] = tied;
  write_tiny_model(folder, config, /*seed=*/11);
}

void write_gpt2(const std::string& folder, bool tied) { write_tiny_model(folder, tiny_gpt2_config(tied), /*seed=*/11); }

Config split_run(const TemporaryFolder& folder) {
  Config config = small_run(folder);
  config.data.max_seq_length = 8;
  config.steps.gradient_accumulation_steps = 2;
  config.steps.clip_grad_norm = 0.5;
  return config;
}

Config with_split(Config config, int64_t pipeline = 1) {
  config.parallelism.tensor_degree = 2;
  config.parallelism.pipeline_degree = pipeline;
  return config;
}

// The last bits differ, because products are added up in parts.
void expect_same_weights(const TemporaryFolder& folder, const std::string& got, const std::string& want) {
  const formats::HfFolder actual(folder.path(got + "/final")), expected(folder.path(want + "/final"));
  ASSERT_EQ(actual.tensors().size(), expected.tensors().size()) << got;
  for (const auto& tensor : expected.tensors()) {
    if (tensor.name.ends_with("c_attn.bias")) continue;  // that of keys has a gradient of rounding errors only
    const at::Tensor weight = expected.tensor(tensor.name);
    const double difference = (actual.tensor(tensor.name) - weight).abs().max().item<double>();
    EXPECT_LE(difference, 1e-4 * weight.abs().max().item<double>()) << got << ": " << tensor.name;
  }
}

void expect_same_metrics(const Left& got, const Left& want) {
  ASSERT_EQ(got.metrics.size(), want.metrics.size());
  for (const auto& [step, line] : want.metrics) {
    auto expected = nlohmann::json::parse(line), actual = nlohmann::json::parse(got.metrics.at(step));
    actual.erase("pipeline_bubble");
    ASSERT_EQ(actual.size(), expected.size()) << line;
    for (const auto& [key, value] : expected.items()) {
      const double number = value.is_number() ? value.get<double>() : 0;
      if (value.is_number()) {
        EXPECT_NEAR(actual.at(key).get<double>(), number, 1e-4 * std::abs(number)) << step << key;
      }
    }
  }
}

struct Case {
  const char* name;
  int data_ranks;
  Change change = [](Config&) {};
  int64_t pipeline = 1;
  bool tied = false;
  void (*write)(const std::string& folder, bool tied) = write_llama;
};

class SplitRun : public ::testing::TestWithParam<Case> {};

TEST_P(SplitRun, LeavesWhatItsDataParallelRanksLeaveAlone) {
  const Case& one = GetParam();
  const TemporaryFolder folder;
  one.write(folder.path("model"), one.tied);
  Config config = split_run(folder);
  one.change(config);
  const Left alone = run_whole(config, folder, "alone", one.data_ranks);
  const Left got =
      run_whole(with_split(config, one.pipeline), folder, "split", static_cast<int>(2 * one.data_ranks * one.pipeline));
  expect_same_metrics(got, alone);
  expect_same_weights(folder, "split", "alone");
}

INSTANTIATE_TEST_SUITE_P(
    All, SplitRun,
    ::testing::Values(Case{"llama", 1}, Case{"tied", 1, [](Config&) {}, 1, true}, Case{"over_data_ranks", 2},
                      Case{"gpt2", 1, [](Config&) {}, 1, true, write_gpt2},
                      Case{"from_rank_0", 2, [](Config& c) { c.sharding.sync_module_states = true; }},
                      Case{"gathered_once", 2, [](Config& c) { c.sharding.strategy = ShardingStrategy::kShardGradOp; }},
                      Case{"replicated", 2, [](Config& c) { c.sharding.strategy = ShardingStrategy::kNoShard; }},
                      Case{"hybrid", 2,
                           [](Config& c) {
                             c.sharding.strategy = ShardingStrategy::kHybridShard;
                             c.parallelism.replicate_degree = 2;
                           }},
                      Case{"whole_sequences", 2, [](Config& c) { c.parallelism.sequence_parallel = false; }},
                      Case{"whole_sequences_gpt2", 1, [](Config& c) { c.parallelism.sequence_parallel = false; }, 1,
                           false, write_gpt2},
                      Case{"experts", 2, [](Config&) {}, 1, false, write_experts},
                      Case{"experts_in_stages", 1, [](Config&) {}, 2, false, write_experts},
                      Case{"recomputed", 1, [](Config& c) { c.model.activation_checkpointing = true; }},
                      Case{"flat", 2, [](Config& c) { c.sharding.use_orig_params = false; }},
                      Case{"stages", 1, [](Config&) {}, 2},
                      Case{"a_stage_without_blocks", 1,
                           [](Config& c) {
                             c.parallelism.pipeline_first_stage_less_layers = 0;
                             c.parallelism.pipeline_last_stage_less_layers = 2;
                           },
                           2},
                      Case{"tied_stages", 1, [](Config&) {}, 2, true}),
    [](const auto& info) { return std::string(info.param.name); });

// Each step is of one mesh; checkpoints are handed from one to the next.
TEST(SplitCheckpoints, AreContinuedOnAnyMesh) {
  const TemporaryFolder folder;
  write_llama(folder.path("model"), /*tied=*/true);
  Config config = split_run(folder);
  config.optimizer.lr_scheduler_type = LrSchedulerType::kConstant;
  run_whole(config, folder, "whole", 1);
  const std::vector<RunOnRanks> parts = {
      {with_split(config), 2}, {config, 1}, {with_split(config, 2), 4}, {with_split(config), 2}};
  expect_same_weights(folder, run_in_turns(parts, folder), "whole");
}

void expect_same_bits(const formats::HfFolder& actual, const formats::HfFolder& expected) {
  ASSERT_EQ(actual.tensors().size(), expected.tensors().size());
  for (const auto& tensor : expected.tensors()) {
    EXPECT_TRUE(actual.tensor(tensor.name).equal(expected.tensor(tensor.name))) << tensor.name;
  }
}

// As a Hugging Face folder at once, and by way of torch.distributed.checkpoint.
TEST(SplitCheckpoints, AreConvertedAsThoseOfWholeModels) {
  using convert::FolderKind;
  for (const int64_t stages : {1, 2}) {
    const TemporaryFolder folder;
    write_llama(folder.path("model"), /*tied=*/false);
    Config config = with_split(split_run(folder), stages);
    config.checkpoints.save_steps = 4;
    run_whole(config, folder, "split", static_cast<int>(4 * stages));
    const std::string checkpoint = folder.path("split/checkpoint-4");
    const formats::HfFolder expected(folder.path("split/final"));
    const convert::ConvertOptions options{.config = folder.path("model/config.json")};
    convert::convert(checkpoint, folder.path("hf"), FolderKind::kHuggingFace, options);
    expect_same_bits(formats::HfFolder(folder.path("hf")), expected);
    convert::convert(checkpoint, folder.path("dcp"), FolderKind::kDcp);
    convert::convert(folder.path("dcp"), folder.path("again"), FolderKind::kHuggingFace, options);
    expect_same_bits(formats::HfFolder(folder.path("again")), expected);
  }
}

TEST(SplitRunErrors, SayWhatDoesNotFit) {
  const TemporaryFolder folder;
  write_llama(folder.path("model"), /*tied=*/false);
  const auto error = [&](int ranks, const Change& change) {
    Config config = with_split(split_run(folder));
    change(config);
    return testing::error_of([&] { run_whole(config, folder, "refused", ranks); });
  };
  EXPECT_THAT(error(3, [](Config&) {}),
              HasSubstr("key \"tensor_parallel_degree\": 2 does not divide 3 rank(s); accepted: 1, 3"));
  EXPECT_THAT(error(64,
                    [](Config& c) {
                      c.parallelism.tensor_degree = 64;
                      c.parallelism.sequence_parallel = false;
                    }),
              HasSubstr("key \"tensor_parallel_degree\": 64: fsdp: tensor_parallel: the rule 'model.layers.*"));
}

}  // namespace
}  // namespace fsdp::trainer::tensor_parallel_run_test
