// Runs `fsdp plan --search` as a user does.
#include "commands/plan_search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "config/config_reader.h"
#include "config/errors.h"
#include "planner/search/state_bound.h"
#include "support/files/temporary_folder.h"
#include "testing/program.h"

namespace fsdp::trainer::plan_search_test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

nlohmann::json planned(const std::string& arguments, int status) {
  const ProgramResult result = run_shell("$FSDP plan --json " + arguments);
  EXPECT_EQ(result.status, status) << result.out << result.err;
  return nlohmann::json::parse(result.out);
}

// Candidates that nobody chose warn of nothing.
nlohmann::json searched(const std::string& arguments, int status) {
  const ProgramResult result = run_shell("$FSDP plan --search --json " + arguments);
  EXPECT_EQ(result.status, status) << result.out << result.err;
  EXPECT_THAT(result.err, IsEmpty());
  return nlohmann::json::parse(result.out).at("search");
}

int status_for(const nlohmann::json& row) {
  return row["verdict"] == "fits" ? kExitSuccess : row["verdict"] == "tight" ? kExitTight : kExitDoesNotFit;
}

// Small, with odd sizes.
std::string small_gpt2(const testing::TemporaryFolder& folder) {
  return folder.write("config.json", R"({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": 60,
      "n_layer": 5, "n_head": 4, "n_positions": 32, "vocab_size": 503})");
}

std::string llama_8b(const testing::TemporaryFolder& folder) {
  return folder.write("config.json", R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"],
      "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
      "num_key_value_heads": 8, "vocab_size": 128256})");
}

// Plans the row's --set line by itself.
void expect_figures_of(const nlohmann::json& row, const std::string& run) {
  std::string set;
  for (const nlohmann::json& one : row["set"]) set += " --set " + one.get<std::string>();
  const nlohmann::json plan = planned(run + set + " --no-changes", status_for(row));
  EXPECT_EQ(row["device"], plan["memory"]["device"]["total"]) << set;
  EXPECT_EQ(row["host"], plan["memory"]["host"]["per_host"]) << set;
  if (!plan.contains("time")) return;
  for (const char* key : {"step_seconds", "tokens_per_second", "samples_per_second"}) {
    if (!row.contains(key)) continue;
    EXPECT_EQ(row[key], plan["time"][key]) << set;
  }
}

TEST(PlanSearchCommand, EachRowHasTheFiguresOfItsPlan) {
  const testing::TemporaryFolder folder;
  const std::string run = "--model " + small_gpt2(folder) + " --set max_seq_length=31 --cluster 2xa100-40";
  const nlohmann::json search = searched(run + " --search-limit 60", 0);
  EXPECT_EQ(search["counts"]["planned"], 60);
  EXPECT_TRUE(search["is_cut"]);
  expect_figures_of(search["config"], run);
  ASSERT_GE(search["front"].size(), 1);
  for (const char* list : {"front", "tight"}) {
    for (const nlohmann::json& row : search[list]) expect_figures_of(row, run);
  }
}

TEST(PlanSearchCommand, TheBatchOfTheConfigIsKept) {
  const testing::TemporaryFolder folder;
  const std::string config = folder.write("run.json", R"({"model_path": ")" + folder.path().string() +
                                                          R"(", "max_seq_length": 16, "train_batch_size": 3,
                                                          "gradient_accumulation_steps": 2})");
  small_gpt2(folder);
  const std::string run = "--config-path " + config + " --cluster 2xa100-40 --search-limit 40";
  const nlohmann::json kept = searched(run, 0);
  EXPECT_EQ(kept["samples_per_step"], 12);
  for (const nlohmann::json& row : kept["front"]) {
    EXPECT_EQ(row["train_batch_size"].get<int>() * row["gradient_accumulation_steps"].get<int>(), 6);
  }
  const nlohmann::json free = searched(run + " --free-batch", 0);
  EXPECT_TRUE(free["samples_per_step"].is_null());
  EXPECT_GT(free["front"][0]["train_batch_size"], 6);
}

TEST(PlanSearchCommand, KeysThatAreSetKeepTheirValues) {
  const testing::TemporaryFolder folder;
  const std::string run = "--model " + small_gpt2(folder) + " --cluster 2xa100-40 --search-limit 40";
  const std::string fixed = " --set max_seq_length=16 --set sharding_strategy=shard_grad_op --set fused_loss=false";
  const nlohmann::json found = searched(run + fixed, 0);
  for (const nlohmann::json& row : found["front"]) {
    for (const nlohmann::json& one : row["set"]) {
      EXPECT_THAT(one.get<std::string>(), Not(StartsWith("sharding_strategy")));
      EXPECT_THAT(one.get<std::string>(), Not(StartsWith("fused_loss")));
    }
  }
}

TEST(PlanSearchCommand, NothingFitsIfNoShardsDo) {
  const testing::TemporaryFolder folder;
  const std::string run =
      "--model " + llama_8b(folder) + " --set cpu_offload=false --set max_seq_length=64 --cluster 2xrtx4090";
  const nlohmann::json search = searched(run, kExitDoesNotFit);
  EXPECT_LE(search["counts"]["planned"], 2);  // with the batch of the config, and with the smallest
  EXPECT_GT(search["counts"]["skipped"], 10);
  EXPECT_THAT(search["front"], IsEmpty());
  EXPECT_EQ(search["nearest"]["verdict"], "does not fit");
  EXPECT_THAT(run_shell("$FSDP plan --search " + run).out, HasSubstr("nothing fits"));
}

TEST(PlanSearchCommand, HostsOfCpusAreSearchedByTheirMemory) {
  const testing::TemporaryFolder folder;
  const std::string run = "--model " + small_gpt2(folder) + " --set max_seq_length=16 --cluster 2xcpu";
  const nlohmann::json search = searched(run + " --search-limit 40 --host-memory 2GiB", 0);
  EXPECT_EQ(search["compared"], "train_batch_size");
  for (const nlohmann::json& row : search["front"]) {
    EXPECT_FALSE(row.contains("device"));
    EXPECT_LT(row["host"], int64_t{2} << 30);
  }
}

// The bound may skip no candidate that fits.
TEST(PlanSearchCommand, NoPlanNeedsLessThanTheBound) {
  const testing::TemporaryFolder folder;
  const std::string model = small_gpt2(folder);
  for (const std::string set : {"sharding_strategy=full_shard", "sharding_strategy=shard_grad_op",
                                "sharding_strategy=no_shard", "sharding_strategy=hybrid_shard_zero2"}) {
    const bool hybrid = set == "sharding_strategy=hybrid_shard_zero2";
    for (const char* more : {"cpu_offload=false", "cpu_offload=true", "optimizer=sgd",
                             hybrid ? "data_parallel_shard_degree=2" : "pipeline_parallel_degree=2"}) {
      const std::vector<std::string> overrides = {"max_seq_length=16", "train_batch_size=1",
                                                  "gradient_accumulation_steps=2", set, more};
      std::string run = "--model " + model + " --no-changes --cluster 2x2xa100-40";
      for (const std::string& one : overrides) run += " --set " + one;
      const nlohmann::json plan = planned(run, 0);
      const Config config = read_config(nlohmann::json{{"model", "gpt2"}}, "test", overrides);
      const auto least = planner::least_memory(config, planner::parse_cluster("2x2xa100-40"),
                                               plan["model"]["parameters"].get<int64_t>());
      EXPECT_LE(least.device, plan["memory"]["device"]["total"]) << run;
      EXPECT_LE(least.host, plan["memory"]["host"]["per_host"]) << run;
    }
  }
}

TEST(PlanSearchCommand, ErrorsNameTheMistake) {
  const auto expect_error = [](const std::string& arguments, const std::string& text) {
    const ProgramResult result = run_shell("$FSDP plan --model gpt2 " + arguments);
    EXPECT_EQ(result.status, 2) << arguments;
    EXPECT_THAT(result.err, HasSubstr(text)) << arguments;
  };
  expect_error("--cluster 4xcpu --search", "--host-memory");
  expect_error("--cluster 8xh100 --jobs 2", "--search");
  expect_error("--cluster 8xh100 --free-batch", "--search");
  expect_error("--cluster 8xh100 --search-limit 5", "--search");
  expect_error("--cluster 8xh100 --search --no-changes", "--no-changes");
  expect_error("--cluster 8xh100 --search-limit 0", "--search-limit");
  expect_error("--cluster 8xh100 --search --set device=cpu", "add --set device=auto");
}

}  // namespace
}  // namespace fsdp::trainer::plan_search_test
