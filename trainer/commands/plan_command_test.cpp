// Runs `fsdp plan` as a user does: figures, verdicts, changes, errors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "report_page/step_timeline.h"
#include "support/files/temporary_folder.h"
#include "testing/program.h"

namespace fsdp::trainer::plan_command_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

nlohmann::json planned(const std::string& arguments, int status) {
  const ProgramResult result = run_shell("$FSDP plan --json " + arguments);
  EXPECT_EQ(result.status, status) << result.out << result.err;
  EXPECT_THAT(result.err, IsEmpty());
  return nlohmann::json::parse(result.out);
}

void expect_error(const std::string& arguments, int status, const std::string& text) {
  const ProgramResult result = run_shell("$FSDP plan " + arguments);
  EXPECT_EQ(result.status, status) << arguments;
  EXPECT_THAT(result.err, HasSubstr(text)) << arguments;
}

TEST(PlanCommand, FiguresOfTheDeviceAddUp) {
  const nlohmann::json plan = planned("--model gpt2 --cluster 8xh100", 0);
  EXPECT_EQ(plan["model"]["parameters"], 124'439'808);
  const nlohmann::json& device = plan["memory"]["device"];
  EXPECT_EQ(device["verdict"], "fits");
  EXPECT_EQ(device["total"], device["reserved"].get<int64_t>() + device["context"].get<int64_t>() +
                                 device["communicators"].get<int64_t>());
  EXPECT_GE(device["reserved"], device["allocated"]);
  EXPECT_GE(device["allocated"], device["requested"]);
  int64_t sum = 0;
  for (const nlohmann::json& bytes : device["peak"]["by_kind"]) sum += bytes.get<int64_t>();
  EXPECT_EQ(device["peak"]["bytes"], sum);
  EXPECT_EQ(device["peak"]["bytes"], device["requested"]);
  EXPECT_EQ(device["peak_of_step"].size(), 3);
  EXPECT_FALSE(plan.contains("changes"));
}

// All ranks together have the whole model once, but for the norms, which are not split. Three ranks read the same
// samples.
TEST(PlanCommand, RanksThatSplitWeightsHaveTheirPartOfThem) {
  const std::string run = "--model smollm2-135m --set max_seq_length=66 --cluster 6xh100";
  const nlohmann::json whole = planned(run, 0), split = planned(run + " --set tensor_parallel_degree=3", 0);
  const auto shards = [](const nlohmann::json& plan) {
    return plan["memory"]["device"]["peak"]["by_kind"]["parameter shards"].get<double>();
  };
  EXPECT_NEAR(shards(split), shards(whole), 0.01 * shards(whole));
  EXPECT_EQ(split["model"]["parameters"], whole["model"]["parameters"]);
  const auto rate = [](const nlohmann::json& plan) { return plan["time"]["tokens_per_second"].get<double>(); };
  const auto seconds = [](const nlohmann::json& plan) { return plan["time"]["step_seconds"].get<double>(); };
  EXPECT_NEAR(rate(split) * seconds(split) * 3, rate(whole) * seconds(whole), 1e-6 * rate(whole) * seconds(whole));
  const std::string searched = run + " --search --search-limit 3 --set tensor_parallel_degree=3";
  EXPECT_EQ(planned(searched + " --set train_batch_size=4", 0)["search"]["samples_per_step"], 8);
}

// 32 blocks of 218,112,000 parameters, embedding and head of 525,336,576 each, a norm of 4,096, over 4 ranks.
TEST(PlanCommand, ShardsOfLlama8BAreExact) {
  const testing::TemporaryFolder folder;
  const std::string model =
      folder.write("config.json", R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 4096,
      "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
      "vocab_size": 128256})");
  const nlohmann::json kinds =
      planned("--model " + model + " --cluster 4xh100", 0)["memory"]["device"]["peak"]["by_kind"];
  EXPECT_EQ(kinds["parameter shards"], 8'030'261'248);
  EXPECT_EQ(kinds["optimizer state"].get<int64_t>() / 1'000'000, 2 * 8'030'261'248 / 1'000'000);
}

TEST(PlanCommand, ChangesThatMakeItFitWerePlanned) {
  const std::string run = "--model gpt2 --set max_seq_length=1024 --set train_batch_size=32 --cluster 2xrtx4090";
  const nlohmann::json plan = planned(run, 4);
  ASSERT_FALSE(plan["changes"].empty());
  const int64_t total = plan["memory"]["device"]["total"];
  for (const nlohmann::json& change : plan["changes"]) {
    EXPECT_LT(change["total"], total);
    std::string set;
    for (const nlohmann::json& one : change["set"]) set += " --set " + one.get<std::string>();
    const int status = change["verdict"] == "fits" ? 0 : change["verdict"] == "tight" ? 3 : 4;
    EXPECT_EQ(planned(run + set, status)["memory"]["device"]["total"], change["total"]) << set;
  }
  EXPECT_FALSE(planned(run + " --no-changes", 4).contains("changes"));
}

TEST(PlanCommand, HostsAreJudgedIfTheirMemoryIsKnown) {
  const std::string run = "--model gpt2 --set max_seq_length=64 --cluster 4xcpu";
  const nlohmann::json host = planned(run, 0)["memory"]["host"];
  EXPECT_EQ(host["verdict"], "unknown");
  EXPECT_EQ(host["peak"]["by_kind"]["parameter shards"], 124'439'808);
  const int64_t needed = host["per_host"];
  EXPECT_EQ(planned(run + " --host-memory " + std::to_string(2 * needed), 0)["memory"]["verdict"], "fits");
  planned(run + " --no-changes --host-memory " + std::to_string(needed), 3);
  planned(run + " --no-changes --host-memory " + std::to_string(needed - 1), 4);
}

TEST(PlanCommand, OffloadedShardsLieInPinnedMemory) {
  const nlohmann::json memory =
      planned("--model gpt2 --set max_seq_length=64 --set cpu_offload=true --cluster 2xa100-40", 0)["memory"];
  EXPECT_FALSE(memory["device"]["peak"]["by_kind"].contains("parameter shards"));
  EXPECT_GE(memory["host"]["pinned"], 124'439'808 / 2 * 4 * 2);  // shards and their gradients
}

TEST(PlanCommand, ReadsConfigJsonWithoutWeights) {
  const testing::TemporaryFolder folder;
  const std::string file =
      folder.write("config.json", R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64,
      "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 101})");
  const nlohmann::json from_file = planned("--model " + file + " --cluster 2xh100", 0);
  EXPECT_EQ(from_file, planned("--model " + folder.path().string() + " --cluster 2xh100", 0));
  const std::string config = folder.write("run.json", R"({"model_path": ")" + folder.path().string() + R"("})");
  EXPECT_EQ(from_file, planned("--config-path " + config + " --cluster 2xh100", 0));
}

TEST(PlanCommand, UnitsAndTheCourseOfAStepAddUp) {
  const nlohmann::json plan = planned("--model gpt2 --set max_seq_length=64 --cluster 4xh100", 0);
  int64_t parameters = 0, shards = 0;
  for (const nlohmann::json& unit : plan["units"]) {
    parameters += unit["parameters"].get<int64_t>();
    shards += unit["shard_bytes"].get<int64_t>();
  }
  const nlohmann::json& device = plan["memory"]["device"];
  EXPECT_EQ(plan["units"].size(), plan["model"]["units"]);
  EXPECT_EQ(parameters, plan["model"]["parameters"]);
  EXPECT_EQ(shards, device["peak"]["by_kind"]["parameter shards"]);
  int64_t most = 0;
  for (const nlohmann::json& point : device["over_step"]["points"]) {
    int64_t bytes = 0;
    for (size_t i = 1; i < point.size(); ++i) bytes += point[i].get<int64_t>();
    most = std::max(most, bytes);
  }
  EXPECT_EQ(most, device["peak_of_step"][2]["bytes"]);
}

TEST(PlanCommand, WritesAPage) {
  const testing::TemporaryFolder folder;
  const std::string run = "--model gpt2 --set max_seq_length=64 --cluster 4xcpu --html ";
  EXPECT_EQ(run_shell("$FSDP plan " + run + folder.path("page.html")).status, 0);
  EXPECT_GT(std::filesystem::file_size(folder.path("page.html")), 100'000);
  expect_error(run + folder.path("none/page.html"), 1, "there is no folder");
}

TEST(PlanCommand, AClusterMayBeAFile) {
  const testing::TemporaryFolder folder;
  const std::string run = "--model gpt2 --set max_seq_length=64 --cluster ";
  const ProgramResult printed = run_shell("$FSDP plan --print-cluster 2x4xh100");
  ASSERT_EQ(printed.status, 0) << printed.err;
  nlohmann::json file = nlohmann::json::parse(printed.out);
  nlohmann::json from_file = planned(run + folder.write("same.json", file.dump()), 0);
  const nlohmann::json from_name = planned(run + "2x4xh100", 0);
  EXPECT_EQ(from_file["memory"], from_name["memory"]);
  EXPECT_EQ(from_file["cluster"]["provenance"], from_name["cluster"]["provenance"]);

  file["device"]["context"] = "1GiB";
  file["nccl"]["memory_across_hosts"] = "100MiB";
  file["host_memory"] = "1MiB";
  file["provenance"]["device.context"] = "measured";
  file["provenance"]["device.matmul_efficiency"] = "guess";
  file["provenance"]["spread"] = "calibrated";
  file["provenance"].erase("nccl.memory_across_hosts");
  const std::string path = folder.write("other.json", file.dump());
  from_file = planned(run + path + " --no-changes", 4);
  EXPECT_EQ(from_file["memory"]["device"]["context"], 1 << 30);
  EXPECT_EQ(from_file["time"]["marks"]["step_seconds"]["mark"], "calibrated");
  EXPECT_EQ(from_file["time"]["marks"]["communication_volume_bytes"]["mark"], "exact");
  EXPECT_EQ(from_file["memory"]["device"]["communicators"].get<int64_t>() % (100 << 20), 0);
  EXPECT_EQ(from_file["memory"]["host"]["capacity"], 1 << 20);
  EXPECT_EQ(planned(run + path + " --host-memory 1TiB", 0)["memory"]["host"]["capacity"], int64_t{1} << 40);
  EXPECT_THAT(run_shell("$FSDP plan --no-changes " + run + path).out,
              AllOf(HasSubstr("(" + path + ")"), HasSubstr("1.00 GiB   measured\n"), HasSubstr("MiB\n  total")));
}

TEST(PlanCommand, TextBeginsWithTheVerdict) {
  const ProgramResult result = run_shell("$FSDP plan --model gpt2 --cluster 8xh100");
  EXPECT_EQ(result.status, 0);
  EXPECT_THAT(result.out, AllOf(HasSubstr("gpt2, 124.44 M parameters in 14 units, on 8 x NVIDIA H100 SXM, 80 GB"),
                                HasSubstr("\nfits: "), HasSubstr("\nmemory of a device\n"),
                                HasSubstr("\ntime of a step (step 3"), HasSubstr("\ncollectives of a step\n")));
}

TEST(PlanCommand, PartsOfAStepAddUp) {
  const nlohmann::json time = planned("--model gpt2 --cluster 8xh100", 0)["time"];
  double sum = 0, computed = 0;
  for (const char* part : {"compute", "exposed_communication", "host_bound", "spread", "idle"}) {
    sum += time[std::string(part) + "_seconds"].get<double>();
  }
  EXPECT_NEAR(time["step_seconds"], sum, 1e-9);
  for (const nlohmann::json& seconds : time["by_kind"]) computed += seconds.get<double>();
  EXPECT_NEAR(time["compute_seconds"], computed, 1e-9);
  EXPECT_EQ(time["steps"].size(), 3);
  EXPECT_EQ(time["steps"][2]["step_seconds"], time["step_seconds"]);
  EXPECT_NEAR(time["tokens_per_second"], 8 * time["tokens_per_second_per_device"].get<double>(), 1e-3);
}

TEST(PlanCommand, ThroughputFollowsFromTheStep) {
  const nlohmann::json time = planned(
      "--model gpt2 --set max_seq_length=256 --set train_batch_size=4 --set gradient_accumulation_steps=2 "
      "--cluster 2x4xh100",
      0)["time"];
  const double seconds = time["step_seconds"];
  EXPECT_NEAR(time["tokens_per_second"], 8 * 4 * 2 * 256 / seconds, 1e-3);
  EXPECT_NEAR(time["tflops_per_device"], time["model_flops_per_device"].get<double>() / seconds * 1e-12, 1e-6);
  EXPECT_NEAR(time["mfu"], time["tflops_per_device"].get<double>() / 989, 1e-9);
  EXPECT_GE(seconds, time["marks"]["step_seconds"]["at_least"].get<double>());
  EXPECT_LE(time["mfu"], time["marks"]["mfu"]["at_most"].get<double>());
}

TEST(PlanCommand, EachFigureIsMarked) {
  const nlohmann::json plan = planned("--model gpt2 --cluster 8xh100", 0);
  for (const auto& [figure, value] : plan["time"].items()) {
    EXPECT_TRUE(figure == "marks" || plan["time"]["marks"].contains(figure)) << figure;
  }
  EXPECT_EQ(plan["time"]["marks"]["communication_volume_bytes"]["mark"], "exact");
  const nlohmann::json& device = plan["memory"]["device"];
  EXPECT_EQ(device["marks"]["by_kind"]["parameter shards"], "exact");
  EXPECT_EQ(device["marks"]["total"]["mark"], "modelled");
  EXPECT_LE(device["marks"]["requested"]["at_least"], device["requested"]);
}

TEST(PlanCommand, CpusHaveNoTime) {
  const std::string run = "--model gpt2 --set max_seq_length=64 --cluster 4xcpu";
  EXPECT_FALSE(planned(run, 0).contains("time"));
  EXPECT_THAT(run_shell("$FSDP plan " + run).out, HasSubstr("no time of a step"));
  expect_error(run + " --trace t.json", 2, "--trace");
}

// The trace has the step of this plan's "time", without the spread of the ranks.
void expect_step_of(const nlohmann::json& time, const std::optional<StepTimeline>& step) {
  ASSERT_TRUE(step);
  const double spread = time["spread_seconds"];
  EXPECT_NEAR(step->length_ms, 1e3 * (time["step_seconds"].get<double>() - spread), 0.01);
  ASSERT_EQ(step->ranks.size(), 1);
  EXPECT_NEAR(step->ranks[0].busy_ms("step"), step->length_ms, 0.01);
  for (const char* kind : {"compute", "gather", "reduce"}) EXPECT_GT(step->ranks[0].busy_ms(kind), 0) << kind;
}

// `fsdp report` shows the last planned step as it shows a run's.
TEST(PlanCommand, TheTraceIsOneOfARun) {
  const testing::TemporaryFolder folder;
  const std::string trace = folder.path("plan.json");
  const std::string run = "--model gpt2 --cluster 2x4xa100-80 --rank 5";
  const nlohmann::json plan = planned(run + " --trace " + trace, 0);
  EXPECT_EQ(plan, planned(run, 0));
  const auto step = read_step_timeline(trace);
  ASSERT_NO_FATAL_FAILURE(expect_step_of(plan["time"], step));
  EXPECT_EQ(step->ranks[0].rank, 5);
  EXPECT_GE(static_cast<double>(plan["memory"]["device"]["requested"].get<int64_t>()), step->ranks[0].peak_bytes());

  folder.write("metrics.jsonl", "{\"step\":1,\"loss\":1}\n");
  folder.write("resolved_config.json", nlohmann::json{{"trace_path", trace}}.dump());
  const ProgramResult report = run_shell("$FSDP report " + folder.path().string());
  EXPECT_EQ(report.status, 0) << report.err;
  EXPECT_THAT(folder.read("report.html"), AllOf(HasSubstr("h.11"), HasSubstr("all-gather")));
}

// A stack changes times, and nothing else.
TEST(PlanCommand, AStackChangesTimes) {
  const std::string run = "--model gpt2 --set dtype=bf16 --cluster 8xh100";
  const nlohmann::json ours = planned(run, 0);
  EXPECT_EQ(ours["stack"], "ours");
  EXPECT_EQ(planned(run + " --stack ours", 0), ours);
  const auto seconds = [](const nlohmann::json& plan) { return plan["time"]["step_seconds"].get<double>(); };
  const nlohmann::json python = planned(run + " --stack fsdp1", 0), compiled = planned(run + " --stack compiled", 0);
  EXPECT_GT(seconds(python), seconds(ours));
  EXPECT_LT(compiled["time"]["by_kind"]["memory-bound"], ours["time"]["by_kind"]["memory-bound"]);
  for (const nlohmann::json& plan : {python, compiled}) {
    EXPECT_EQ(plan["memory"], ours["memory"]);
    EXPECT_EQ(plan["time"]["model_flops_per_device"], ours["time"]["model_flops_per_device"]);
  }
  const nlohmann::json in_float8 = planned(run + " --stack compiled-fp8", 0);
  EXPECT_LT(in_float8["time"]["communication_volume_bytes"], compiled["time"]["communication_volume_bytes"]);
  EXPECT_THAT(run_shell("$FSDP plan " + run + " --stack fsdp1").out, HasSubstr("; times of the stack fsdp1\n"));
}

TEST(PlanCommand, StacksThatCannotBePlannedAreRefused) {
  expect_error("--model gpt2 --cluster 8xh100 --stack fsdp3", 2, "no stack has this name");
  expect_error("--model gpt2 --cluster 8xcpu --stack fsdp1", 2, "name a cluster with GPUs");
  expect_error("--model gpt2 --cluster 8xa100-80 --set dtype=bf16 --stack compiled-fp8", 2, "products in fp8");
  expect_error("--model gpt2 --cluster 8xh100 --set dtype=fp32 --stack compiled-fp8", 2, "add --set dtype=bf16");
  expect_error("--model gpt2 --cluster 8xh100 --set optimizer=sgd --stack llm-foundry", 2, "add --set optimizer=adamw");
  expect_error("--model llama-3.2-1b --cluster 8xh100 --set tensor_parallel_degree=2 --stack compiled-fp8", 2,
               "planned for whole weights only");
}

TEST(PlanCommand, ErrorsNameTheMistake) {
  expect_error("--model gpt2 --cluster 8xtpu", 2, "no device is named \"tpu\"");
  expect_error("--cluster 8xh100", 2, "--model");
  expect_error("--model gpt2", 2, "--cluster");
  expect_error("--model gpt2 --cluster no-such.json", 2, "no-such.json: cannot open the file");
  expect_error("--print-cluster 8xtpu", 2, "no device is named \"tpu\"");
  expect_error("--model gpt2 --cluster 8xh100 --rank 8", 2, "ranks 0 to 7");
  expect_error("--model gpt2 --cluster 8xh100 --host-memory 3bananas", 2, "3bananas");
  expect_error("--model gpt2 --cluster 8xh100 --set device=cpu", 2, "add --set device=auto");
  expect_error("--model gpt2 --cluster 8xcpu --set device=cuda", 2, "add --set device=auto");
  expect_error("--model gpt2 --cluster 8xh100 --set lerning_rate=1", 2, "learning_rate");
  expect_error("--model gpt2 --cluster 8xh100 --set attn_mask_type=block_causal", 2, "add --document-tokens N");
  expect_error("--model gpt2 --cluster 8xh100 --document-tokens 64", 2, "but the key is \"causal\"");
  expect_error("--model gpt2 --cluster 8xh100 --set tensor_parallel_degree=2", 2, "resid_pdrop 0.1");
  expect_error("--model t5-611m --cluster 8xh100 --set tensor_parallel_degree=2", 2, "only the weights of causal");
  expect_error("--model llama-3.2-1b --cluster 6xh100 --set tensor_parallel_degree=4", 2, "does not divide 6 rank(s)");
  expect_error("--model gpt2 --cluster 6xh100 --set sharding_strategy=hybrid_shard --set sharding_factor=4", 2,
               "sharding_factor");
  expect_error("--model dhen-550m --cluster 8xh100", 2, "cannot be planned");
  expect_error("--model no-such-model --cluster 8xh100", 1, "no preset is named \"no-such-model\"");
}

TEST(PlanCommand, ThePaperIsNoOtherRun) {
  expect_error("--paper --model gpt2", 2, "--paper");
  expect_error("--paper --cluster 8xh100", 2, "--paper");
  expect_error("--paper --set dtype=fp32", 2, "--paper");
  expect_error("--paper --stack fsdp2", 2, "--paper");
  expect_error("--paper --html no/such/folder/page.html", 1, "no/such/folder");
  expect_error("--model gpt2 --cluster 8xh100 --jobs 2", 2, "--search");
}

// Of two ranks; everything but products and exchanges takes a microsecond.
std::string file_of_cpus(const testing::TemporaryFolder& folder) {
  nlohmann::json products = nlohmann::json::array(), exchanges = nlohmann::json::array();
  for (const char* product : {"matrices", "attention", "attention_backward"}) {
    products.push_back({{"product", product},
                        {"dtype", "fp32"},
                        {"batch", 1},
                        {"m", 128},
                        {"n", 128},
                        {"k", 128},
                        {"flops", 4194304},
                        {"seconds", "100us"}});
  }
  for (const char* collective :
       {"all_gather", "reduce_scatter", "all_reduce", "broadcast", "all_gather_bytes", "message"}) {
    for (const char* path : {"memory", "in_place"}) {
      exchanges.push_back(
          {{"collective", collective}, {"path", path}, {"ranks", 2}, {"points", {{256, "10us"}, {"1MiB", "200us"}}}});
    }
  }
  const nlohmann::json operators = {{{"name", "others"}, {"dtype", "fp32"}, {"points", {{4096, "1us"}}}}};
  return folder.write(
      "cpu.json",
      nlohmann::json{
          {"schema_version", 1},
          {"device", "cpu"},
          {"ranks_per_host", 2},
          {"host_per_kernel", "2us"},
          {"cpu", {{"threads", 1}, {"operators", operators}, {"products", products}, {"exchanges", exchanges}}}}
          .dump());
}

TEST(PlanCommand, CpusHaveTimesIfTheyWereMeasured) {
  const testing::TemporaryFolder folder;
  const std::string run = "--model gpt2 --set max_seq_length=64 --set dtype=fp32 --cluster ";
  const std::string cpus = run + file_of_cpus(folder), trace = folder.path("trace.json");
  const nlohmann::json plan = planned(cpus, 0), time = plan["time"];
  EXPECT_EQ(plan["memory"], planned(run + "2xcpu", 0)["memory"]);
  EXPECT_FALSE(time.contains("mfu"));
  EXPECT_GT(time["tokens_per_second"], 0);
  EXPECT_GT(time["host_bound_seconds"], 0);
  EXPECT_GT(time["exposed_communication_seconds"], 0);
  EXPECT_GT(time["by_kind"]["matrix products"], 0);
  EXPECT_EQ(time["collectives"][0]["hosts"], 1);
  EXPECT_EQ(planned(cpus + " --trace " + trace + " --html " + folder.path("page.html"), 0)["time"], time);
  EXPECT_THAT(folder.read("page.html"), AllOf(HasSubstr("Time of a step"), HasSubstr("One step")));
  expect_step_of(time, read_step_timeline(trace));
  EXPECT_THAT(run_shell("$FSDP plan " + cpus).out, AllOf(HasSubstr("for each rank"), HasSubstr("TFLOP/s of a rank")));
  EXPECT_THAT(run_shell("$FSDP plan " + run + "2xcpu").out, HasSubstr("no time of a step"));
}

// Of a quarter of the sample's length each, attention has a quarter of the pairs.
TEST(PlanCommand, DocumentsCostWhatTheyCompute) {
  const testing::TemporaryFolder folder;
  const std::string model =
      folder.write("config.json", R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 576,
      "intermediate_size": 1536, "num_hidden_layers": 4, "num_attention_heads": 9, "vocab_size": 4096,
      "max_position_embeddings": 16384, "eos_token_id": 2})");
  const std::string run =
      "--model " + model + " --set max_seq_length=16384 --set train_batch_size=1 --set dtype=bf16 --cluster 8xh100";
  const auto attention = [](const nlohmann::json& plan) { return plan["time"]["by_kind"]["attention"].get<double>(); };
  const nlohmann::json whole = planned(run, 0);
  const std::string by_document = run + " --set attn_mask_type=block_causal --document-tokens ";
  EXPECT_LT(attention(planned(by_document + "4096", 0)), 0.6 * attention(whole));
  EXPECT_NEAR(attention(planned(by_document + "16384", 0)), attention(whole), 1e-6 * attention(whole));
}

TEST(PlanCommand, PipelinesOnCpusHaveTimesIfMessagesWereMeasured) {
  const testing::TemporaryFolder folder;
  const std::string run =
      "--model smollm2-135m --set max_seq_length=16 --set gradient_accumulation_steps=2 --set dtype=fp32 "
      "--set pipeline_parallel_degree=2 --cluster ";
  const nlohmann::json plan = planned(run + file_of_cpus(folder), 0);
  for (const nlohmann::json& rank : plan["pipeline"]["ranks"]) {
    EXPECT_NEAR(rank["step_seconds"], plan["time"]["step_seconds"], 0.1 * rank["step_seconds"].get<double>());
  }
  EXPECT_GT(plan["time"]["exposed_communication_seconds"], 0);
  nlohmann::json cluster = nlohmann::json::parse(folder.read("cpu.json"));
  for (auto& exchange : cluster["cpu"]["exchanges"]) {
    if (exchange["collective"] == "message") exchange["collective"] = "broadcast";
  }
  expect_error(run + folder.write("without.json", cluster.dump()), 1,
               "message over memory, 2 ranks; measure this host");
}

TEST(PlanCommand, TimesOfCpusAreThoseOfTheirDtype) {
  const testing::TemporaryFolder folder;
  const std::string run = "--model gpt2 --set max_seq_length=64 --cluster " + file_of_cpus(folder);
  expect_error(run + " --set dtype=bf16", 2, "has no times");
  expect_error(run + " --set dtype=fp32 --set comm_backend=gloo", 1, "over gloo, 2 ranks; measure this host again");
  expect_error("--model gpt2 --cluster 2xcpu --trace trace.json", 2, "--calibrate FILE");
}

TEST(PlanCommand, CalibrationPlansNothing) {
  expect_error("--calibrate cpu.json", 2, "--nproc-per-node");
  expect_error("--nproc-per-node 2", 2, "--calibrate");
  expect_error("--calibrate cpu.json --nproc-per-node 2 --model gpt2", 2, "--calibrate");
  expect_error("--calibrate cpu.json --nproc-per-node 2 --jobs 2", 2, "--jobs");
  expect_error("--calibrate no/such/folder/cpu.json --nproc-per-node 2", 1, "there is no folder");
  const ProgramResult nested = run_shell("RANK=0 $FSDP plan --calibrate cpu.json --nproc-per-node 2");
  EXPECT_EQ(nested.status, 2);
  EXPECT_THAT(nested.err, HasSubstr("the environment has RANK"));
}

}  // namespace
}  // namespace fsdp::trainer::plan_command_test
