// Tests the program as a user runs it: whole runs with real processes, and what options change.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <filesystem>
#include <functional>
#include <map>
#include <set>

#include "comm/meeting/free_port.h"
#include "formats/hugging_face/hf_folder.h"
#include "testing/program_runs.h"

namespace fsdp::trainer::program_test {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Program = ProgramRuns;

TEST_F(Program, HelpAndVersion) {
  EXPECT_THAT(run_shell("$FSDP --version").out, HasSubstr("fsdp "));
  for (const char* command : {"$FSDP --help", "$FSDP train --help"}) {
    const ProgramResult help = run_shell(command);
    EXPECT_EQ(help.status, 0);
    EXPECT_THAT(help.out,
                AllOf(HasSubstr("learning_rate (number; default: 5e-05)"), HasSubstr("gradient_accumulation_steps")));
  }
}

TEST_F(Program, TheConfigMayBeGivenByItself) {
  folder_.write("config.json", config({{"max_steps", 1}}).dump());
  const std::string path = folder_.path("config.json");
  const ProgramResult result = run_shell("exec $FSDP train " + path + " --set seed=3");
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("step 1/1 | loss "));
  EXPECT_EQ(run_shell("exec $FSDP train " + path + " --config-path " + path).status, 2);
  EXPECT_EQ(run_shell("exec $FSDP plan " + path + " --cluster 2xcpu").status, 0);
}

TEST_F(Program, TrainsEvaluatesAndSaves) {
  const ProgramResult result = train(config({{"save_final", true},
                                             {"do_eval", true},
                                             {"eval_dataset", "dummy:5"},
                                             {"logging_steps", 3},
                                             {"max_shard_size", "20kB"}}),
                                     "--nproc-per-node 2 --save-config --set max_steps=5");
  ASSERT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("step 3/5 | loss "), HasSubstr("step 5/5 | loss "), HasSubstr("eval loss ")));

  const auto lines = metrics();
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[0]["step"], 3);
  EXPECT_EQ(lines[1]["step"], 5);
  EXPECT_NEAR(lines[1]["learning_rate"].get<double>(), 1e-2 / 5, 1e-12);
  EXPECT_NEAR(lines[0]["loss"].get<double>(), std::log(kTinyVocabulary), 1.0);
  for (const char* name :
       {"grad_norm", "samples_per_second", "tokens_per_second", "tflops", "peak_memory_bytes", "mapped_file_bytes"})
    EXPECT_GT(lines[0][name], 0) << name;
  EXPECT_EQ(lines[2]["step"], 5);
  EXPECT_GT(lines[2]["eval_loss"], 0);

  EXPECT_EQ(json::parse(folder_.read("output/resolved_config.json"))["max_steps"], 5);
  const formats::HfFolder saved(folder_.path("output/final"));
  const formats::HfFolder original(folder_.path("model"));
  EXPECT_GT(json::parse(folder_.read("output/final/model.safetensors.index.json"))["weight_map"].size(), 2u);
  EXPECT_LT(std::filesystem::file_size(folder_.path("output/final") + "/model-00001-of-00002.safetensors"), 24000u);
  ASSERT_EQ(saved.tensors().size(), original.tensors().size());
  for (const auto& tensor : original.tensors()) {
    EXPECT_EQ(saved.find(tensor.name)->shape, tensor.shape);
    EXPECT_FALSE(torch::equal(saved.tensor(tensor.name), original.tensor(tensor.name)))
        << tensor.name << " did not train";
  }
  EXPECT_EQ(folder_.read("output/final/tokenizer.json"), folder_.read("model/tokenizer.json"));
}

// The same global batches give the same losses with 1, 2, 3 and 4 processes, however the ranks are started.
TEST_F(Program, LossesDoNotDependOnTheNumberOfRanks) {
  const auto losses = [&](int ranks) {
    const ProgramResult result = train(config({{"train_batch_size", 12 / ranks}, {"lr_scheduler_type", "constant"}}),
                                       "--nproc-per-node " + std::to_string(ranks));
    EXPECT_EQ(result.status, 0) << result.err;
    std::vector<double> values;
    for (const json& line : metrics()) values.push_back(line["loss"]);
    return values;
  };
  const auto expected = losses(1);
  ASSERT_EQ(expected.size(), 4u);
  for (int ranks : {2, 3, 4}) {
    const auto actual = losses(ranks);
    ASSERT_EQ(actual.size(), 4u);
    for (size_t i = 0; i < 4; ++i)
      EXPECT_NEAR(actual[i], expected[i], 1e-5 * expected[i]) << ranks << " ranks, line " << i;
  }
}

// Four processes in two shard groups, in one group for this host, and with units released to pairs: the losses are the
// same.
TEST_F(Program, LossesDoNotDependOnHowRanksAreGrouped) {
  const auto losses = [&](const json& changes) {
    const ProgramResult result = train(config(changes), "--nproc-per-node 4");
    EXPECT_EQ(result.status, 0) << result.err;
    std::vector<double> values;
    for (const json& line : metrics()) values.push_back(line["loss"]);
    return values;
  };
  const auto expected = losses(json::object());
  ASSERT_EQ(expected.size(), 4u);
  for (const json& changes : {json{{"sharding_strategy", "hybrid_shard"}, {"sharding_factor", 2}},
                              json{{"sharding_strategy", "hybrid_shard_zero2"}, {"sharding_factor", 2}},
                              json{{"sharding_strategy", "hybrid_shard"}}, json{{"reshard_after_forward", 2}}}) {
    const auto actual = losses(changes);
    ASSERT_EQ(actual.size(), 4u);
    for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(actual[i], expected[i], 1e-5 * expected[i]) << changes;
  }
}

TEST_F(Program, TrainsInBf16) {
  for (const char* master : {"fp32", "bf16"}) {
    const ProgramResult result = train(
        config({{"dtype", "bf16"}, {"master_dtype", master}, {"save_final", true}, {"overwrite_output_dir", true}}),
        "--nproc-per-node 2");
    ASSERT_EQ(result.status, 0) << result.err;
    const formats::HfFolder saved(folder_.path("output/final"));
    EXPECT_EQ(saved.tensors()[0].dtype, master == std::string("fp32") ? at::kFloat : at::kBFloat16);
    EXPECT_NEAR(metrics()[0]["loss"].get<double>(), std::log(kTinyVocabulary), 1.0);
  }
}

TEST_F(Program, TrainsInFp16AndReportsSkippedSteps) {
  const ProgramResult result =
      train(config({{"dtype", "fp16"}, {"fp16_init_scale", 1e30}, {"logging_steps", 2}}), "--nproc-per-node 2");
  ASSERT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("| loss scale 5e+29, skipped\n"));
  const auto lines = metrics();
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_TRUE(lines[1]["grad_norm"].is_null());
  EXPECT_EQ(lines[1]["skipped"], true);
  EXPECT_EQ(lines[1]["skipped_steps"], 4);
  EXPECT_NEAR(lines[1]["loss_scale"].get<double>(), 1e30 / 8, 1e23);
  ASSERT_EQ(train(config({{"dtype", "fp16"}}), "--nproc-per-node 2").status, 0);
  EXPECT_EQ(metrics()[3]["skipped"], false);
  EXPECT_GT(metrics()[3]["grad_norm"], 0);
  ASSERT_EQ(train(config(), "").status, 0);
  EXPECT_FALSE(metrics()[0].contains("loss_scale"));
}

// The weights of the model folder are evaluated, since the learning rate is 0.
TEST_F(Program, FullPrecisionInEvalIsThatOfTheMasterDtype) {
  const auto eval_loss = [&](const json& changes) {
    json c = config({{"do_eval", true}, {"eval_dataset", "dummy:5"}, {"max_steps", 1}, {"learning_rate", 0}});
    c.update(changes);
    EXPECT_EQ(train(c, "--nproc-per-node 2").status, 0);
    return metrics().back()["eval_loss"].get<double>();
  };
  const double expected = eval_loss({{"dtype", "fp32"}});
  EXPECT_NE(eval_loss({{"dtype", "bf16"}}), expected);
  EXPECT_EQ(eval_loss({{"dtype", "bf16"}, {"full_precision_in_eval", true}}), expected);
}

// Dropout differs between processes and repeats in recomputation, so no loss or norm changes by a bit.
TEST_F(Program, ActivationCheckpointingChangesNoNumber) {
  json model = tiny_llama_config(/*tied=*/true);
  model["attention_dropout"] = 0.3;
  folder_.write("model/config.json", model.dump());
  const auto expected = losses_and_norms(json::object());
  ASSERT_EQ(expected.size(), 8u);
  EXPECT_FALSE(metrics().front().contains("hardware_tflops"));
  EXPECT_EQ(losses_and_norms({{"activation_checkpointing", true}}), expected);
  // Flops per token: q and o 18x18, k and v 18x6; gate, up, down 18x29; scores and values 18 wide, 16 keys; the head.
  const double layers = 3 * (2 * (2 * 324 + 2 * 108 + 3 * 522) + 2 * 2 * 18 * 16);
  const json line = metrics().front();
  EXPECT_NEAR(line["hardware_tflops"].get<double>() / line["tflops"].get<double>(),
              1 + layers / (3 * layers + 6 * 18 * kTinyVocabulary), 1e-9);
  EXPECT_EQ(losses_and_norms({{"activation_checkpointing", true},
                              {"activation_checkpointing_every", 2},
                              {"activation_checkpointing_save_ops", {"aten::mm", "aten::bmm"}}}),
            expected);
}

// The time of gathers and the connections that they use change no number.
TEST_F(Program, OverlapChangesNoNumber) {
  const auto expected = losses_and_norms({{"forward_prefetch", false}, {"backward_prefetch", "none"}});
  ASSERT_EQ(expected.size(), 8u);
  EXPECT_EQ(losses_and_norms(json::object()), expected);
  EXPECT_EQ(losses_and_norms({{"backward_prefetch", "backward_post"}, {"max_gathered_units", 1}}), expected);
  EXPECT_EQ(losses_and_norms({{"limit_all_gathers", false}, {"one_communicator", true}}), expected);
  EXPECT_EQ(losses_and_norms({{"keep_memory", true}}), expected);
}

// The location of shards and optimizer state changes no number.
TEST_F(Program, OffloadChangesNoNumber) {
  const auto expected = losses_and_norms(json::object());
  ASSERT_EQ(expected.size(), 8u);
  EXPECT_EQ(losses_and_norms({{"offload_path", folder_.path("offload")}}), expected);
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path("offload")));
  EXPECT_EQ(losses_and_norms({{"cpu_offload", true}}), expected);
}

TEST_F(Program, OffloadIsInTheLog) {
  const json both = {{"cpu_offload", true}, {"offload_path", folder_.path("offload")}};
  const ProgramResult result = train(config(both), "--nproc-per-node 2");
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("shards are in host memory already"), HasSubstr(folder_.path("offload"))));
}

// Returns the names of one category in the trace for each rank.
std::map<int, std::set<std::string>> traced(const json& trace, const std::string& category) {
  std::map<int, std::set<std::string>> names;
  for (const json& event : trace["traceEvents"]) {
    if (event.value("cat", "") == category) names[event["pid"]].insert(event["name"]);
  }
  return names;
}

TEST_F(Program, WritesATrace) {
  const ProgramResult result = train(config({{"trace_path", folder_.path("traces/t.json")}}), "--nproc-per-node 2");
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("wrote a trace to " + folder_.path("traces/t.json")));
  const json trace = json::parse(folder_.read("traces/t.json"));
  const std::set<std::string> all = {"root", "model.layers.0", "model.layers.1", "model.layers.2"};
  EXPECT_EQ(traced(trace, "step")[1], (std::set<std::string>{"forward", "backward", "optimizer"}));
  for (const char* category : {"compute", "gather", "reduce"}) {
    for (int rank : {0, 1}) EXPECT_EQ(traced(trace, category)[rank], all) << category;
  }

  const ProgramResult refused = train(config({{"trace_path", "/proc/none/t.json"}}), "--nproc-per-node 2");
  EXPECT_EQ(refused.status, 1);
  EXPECT_THAT(refused.out, AllOf(HasSubstr("the trace was not written"), HasSubstr("step 4/4")));
  EXPECT_THAT(refused.err, AllOf(HasSubstr("the trace was not written"), HasSubstr("/proc/none")));
}

// The variables that torchrun and Open MPI's mpirun set.
TEST_F(Program, JoinsTheRanksOfTheEnvironment) {
  folder_.write("config.json", config().dump());
  const std::string command =
      "MASTER_ADDR=127.0.0.1 MASTER_PORT=$PORT $FSDP train --config-path " + folder_.path("config.json");
  const auto run_two_ranks = [&](const std::function<std::string(int)>& variables) {
    const comm::FreePort port;
    return run_shell("PORT=" + std::to_string(port.number()) + "\n" + variables(1) + command + " &\n" + variables(0) +
                     command + " && wait $!");
  };
  const auto torchrun = [](int rank) {
    return c10::str("RANK=", rank, " LOCAL_RANK=", rank, " WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 ");
  };
  const auto mpirun = [](int rank) {
    return c10::str("OMPI_COMM_WORLD_RANK=", rank, " OMPI_COMM_WORLD_LOCAL_RANK=", rank,
                    " OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_SIZE=2 ");
  };
  for (const std::function<std::string(int)>& variables :
       {std::function<std::string(int)>(torchrun), std::function<std::string(int)>(mpirun)}) {
    std::filesystem::remove_all(folder_.path("output"));
    const ProgramResult result = run_two_ranks(variables);
    EXPECT_EQ(result.status, 0) << result.err;
    EXPECT_EQ(metrics().size(), 4u);
  }
}

}  // namespace
}  // namespace fsdp::trainer::program_test
