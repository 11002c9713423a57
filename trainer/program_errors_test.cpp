// Tests mistakes and failures of every kind as a user of the program sees them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>

#include "comm/meeting/free_port.h"
#include "testing/program_runs.h"

namespace fsdp::trainer::program_errors_test {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using Program = ProgramRuns;

TEST_F(Program, MistakesInTheCommandLineHaveStatus2) {
  for (const char* arguments : {"", "trian", "train", "train --config-path", "train --config-path c --nproc-per-node 0",
                                "train --config-path c --nproc-per-node two", "train --config-path c --unknown"}) {
    const ProgramResult result = run_shell("$FSDP " + std::string(arguments));
    EXPECT_EQ(result.status, 2) << arguments;
    EXPECT_THAT(result.err, Not(::testing::IsEmpty())) << arguments;
  }
}

TEST_F(Program, AnOutputFolderThatCannotBeMadeIsNamed) {
  const ProgramResult result = train(config({{"output_dir", "/proc/nowhere"}, {"save_final", false}}));
  EXPECT_EQ(result.status, 1);
  EXPECT_THAT(result.err, HasSubstr("key \"output_dir\": \"/proc/nowhere\" cannot be created: "));
}

TEST_F(Program, OffloadToAFolderThatCannotBeMadeIsNamed) {
  folder_.write("file", "");
  const ProgramResult result = train(config({{"offload_path", folder_.path("file/below")}}), "--nproc-per-node 2");
  EXPECT_EQ(result.status, 1);
  EXPECT_THAT(result.err, AllOf(HasSubstr("offload_path"), HasSubstr(folder_.path("file/below"))));
}

TEST_F(Program, AModelThatCannotFitIsRefused) {
  const json huge = {{"model_path", nullptr}, {"model", "mingpt-175b"}};
  for (const char* options : {"--nproc-per-node 2", ""}) {
    const ProgramResult result = train(config(huge), options);
    EXPECT_EQ(result.status, 2) << result.out;
    EXPECT_THAT(result.err, AllOf(HasSubstr("too large for this host"), HasSubstr("parameters 65"),
                                  HasSubstr("\"check_memory\" to false")));
  }
  const ProgramResult samples = train(config({{"dataset", "dummy:1000000000000"}}));
  EXPECT_EQ(samples.status, 2);
  EXPECT_THAT(samples.err, HasSubstr("key \"dataset\": \"dummy:1000000000000\""));
}

// The limit simulates a full disk: metrics.jsonl cannot grow beyond 10 KiB.
TEST_F(Program, MetricsThatCannotBeWrittenEndNoRun) {
  folder_.write("config.json",
                config({{"max_steps", 60}, {"save_steps", 30}, {"report_to", {"csv", "tensorboard"}}}).dump());
  const ProgramResult result = run_shell("ulimit -f 20\nexec $FSDP train --config-path " + folder_.path("config.json"));
  EXPECT_EQ(result.status, 1);
  EXPECT_THAT(result.out, AllOf(HasSubstr("metrics.jsonl: cannot write: File too large; training continues"),
                                HasSubstr("checkpoint-30 failed"), HasSubstr("step 60/60 | loss ")));
  EXPECT_THAT(result.err, AllOf(HasSubstr("metrics.jsonl: "), HasSubstr("line(s) of this run are missing from it")));
  const auto lines = metrics();
  ASSERT_GT(lines.size(), 20u);
  for (size_t i = 0; i < lines.size(); ++i) EXPECT_EQ(lines[i]["step"], i + 1);
}

TEST_F(Program, APortInUseIsNamed) {
  folder_.write("config.json", config().dump());
  const int taken = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  socklen_t length = sizeof(address);
  ASSERT_EQ(bind(taken, reinterpret_cast<sockaddr*>(&address), length), 0);
  ASSERT_EQ(listen(taken, 1), 0);
  getsockname(taken, reinterpret_cast<sockaddr*>(&address), &length);
  const std::string port = std::to_string(ntohs(address.sin_port));
  const ProgramResult result =
      run_shell("RANK=0 LOCAL_RANK=0 WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=" + port +
                " $FSDP train --config-path " + folder_.path("config.json"));
  close(taken);
  EXPECT_EQ(result.status, 1);
  EXPECT_THAT(result.err, AllOf(HasSubstr("rank 0 "), HasSubstr(port)));
}

TEST_F(Program, ContradictoryEnvironmentsAreMistakes) {
  folder_.write("config.json", config().dump());
  const std::string command = "$FSDP train --config-path " + folder_.path("config.json");
  const ProgramResult both = run_shell("RANK=0 WORLD_SIZE=1 " + command + " --nproc-per-node 2");
  EXPECT_EQ(both.status, 2);
  EXPECT_THAT(both.err, AllOf(HasSubstr("--nproc-per-node"), HasSubstr("RANK")));
  const ProgramResult half = run_shell("RANK=0 " + command);
  EXPECT_EQ(half.status, 2);
  EXPECT_THAT(half.err, HasSubstr("WORLD_SIZE"));
  const ProgramResult beyond = run_shell("RANK=2 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=1234 " + command);
  EXPECT_EQ(beyond.status, 2);
  EXPECT_THAT(beyond.err, HasSubstr("RANK is 2"));
}

// A mistake causes one message, before any rank is started, and leaves no files.
TEST_F(Program, MistakesInConfigModelAndDataAreOneMessage) {
  folder_.write("ids.bin", std::string("\x05\x00\xff\x00", 4));
  folder_.write("short.txt", std::string(100, 'a'));
  std::filesystem::create_directories(folder_.path("taken/final"));
  folder_.write("taken/final/thesis.txt", "precious");
  struct Mistake {
    json changes;
    int status;
    std::vector<std::string> words;
  };
  const std::vector<Mistake> mistakes = {
      {{{"max_step", 3}}, 2, {"config.json", "max_step", "max_steps"}},
      {{{"sharding_factor", 3}}, 2, {"sharding_factor", "2 or null"}},
      {{{"sharding_strategy", "hybrid_shard"}, {"sharding_factor", 3}}, 2, {"sharding_factor", "3", "1, 2 or null"}},
      {{{"reshard_after_forward", 2}}, 2, {"reshard_after_forward", "2 rank(s)"}},
      {{{"sharding_strategy", "no_shard"}, {"reshard_after_forward", true}}, 2, {"reshard_after_forward", "no_shard"}},
      {{{"fp16_init_scale", 2}}, 2, {"config.json", "fp16_init_scale", "dtype"}},
      {{{"full_precision_classes", {"RmsNorm"}}}, 2, {"full_precision_classes", "RmsNorm", "RMSNorm"}},
      {{{"max_shard_size", "1MB"}}, 2, {"config.json", "max_shard_size", "save_final"}},
      {{{"max_shard_size", "5 GB"}, {"save_final", true}}, 2, {"max_shard_size", "5 GB", "5GB, 200MiB"}},
      {{{"master_dtype", "fp16"}}, 2, {"master_dtype", "fp16", "fp32 or bf16"}},
      {{{"max_seq_length", 65}}, 2, {"max_seq_length", "65", "64"}},
      {{{"wrap_classes", {"Foo"}}}, 2, {"wrap_classes", "Foo", "DecoderLayer"}},
      {{{"activation_checkpointing", true}, {"activation_checkpointing_save_ops", {"aten::linear"}}},
       2,
       {"activation_checkpointing_save_ops", "aten::linear", "decomposes"}},
      {{{"dataset", "dummy:x"}}, 2, {"dataset", "dummy:x"}},
      {{{"model_path", folder_.path("nowhere")}}, 1, {"nowhere"}},
      {{{"dataset", folder_.path("nothing.bin")}}, 1, {"nothing.bin", "No such file"}},
      {{{"dataset", folder_.path("ids.bin")}, {"max_seq_length", 2}},
       1,
       {"ids.bin", "token id 255", "byte offset 2", "131"}},
      {{{"dataset", folder_.path("short.txt")}, {"train_batch_size", 4}}, 1, {"short.txt", "6 samples", "8 samples"}},
      {{{"save_final", true}, {"output_dir", folder_.path("taken")}}, 1, {"taken/final", "not a model folder"}},
  };
  for (const Mistake& mistake : mistakes) {
    const ProgramResult result = train(config(mistake.changes), "--nproc-per-node 2");
    EXPECT_EQ(result.status, mistake.status) << result.err;
    for (const std::string& word : mistake.words) EXPECT_THAT(result.err, HasSubstr(word));
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
    EXPECT_THAT(result.err, Not(HasSubstr("rank ")));
    EXPECT_FALSE(std::filesystem::exists(folder_.path("output")));
  }
}

TEST_F(Program, ARankThatIsKilledEndsTheRun) {
  // The run has no end of its own, so only the kill can end it.
  folder_.write("config.json", config({{"max_steps", 100000000}}).dump());
  const std::string script = "$FSDP train --config-path " + folder_.path("config.json") +
                             " --nproc-per-node 3 & launcher=$!\n" + "until [ -s " +
                             folder_.path("output/metrics.jsonl") + " ] || ! kill -0 $launcher; do sleep 0.05; done\n" +
                             "for p in $(cat /proc/$launcher/task/$launcher/children); do\n" +
                             "  grep -q '^fsdp:rank1$' /proc/$p/comm && kill -9 $p\n" + "done\n" + "wait $launcher";
  const ProgramResult result = run_shell(script);
  EXPECT_EQ(result.status, 128 + 9);
  EXPECT_THAT(result.err,
              AllOf(HasSubstr("rank 1 was killed by signal 9"), HasSubstr("rank 0 "), HasSubstr("rank 2 ")));
}

TEST_F(Program, AFailureOfOneRankEndsAll) {
  folder_.write("in_the_way", "");
  const ProgramResult result = train(config({{"output_dir", folder_.path("in_the_way")}}), "--nproc-per-node 2");
  EXPECT_EQ(result.status, 1);
  EXPECT_THAT(result.err, AllOf(HasSubstr("rank 0: "), HasSubstr("in_the_way")));
}

// An error of all ranks is printed once, in the words of the program.
TEST_F(Program, AnErrorOfAllRanksIsSaidOnce) {
  ASSERT_EQ(train(config({{"save_steps", 4}}), "--nproc-per-node 2").status, 0);
  const json changes = {{"master_dtype", "bf16"},
                        {"output_dir", folder_.path("other")},
                        {"resume_from_checkpoint", folder_.path("output/checkpoint-4")}};
  const ProgramResult result = train(config(changes), "--nproc-per-node 3");
  EXPECT_EQ(result.status, 1);
  const std::string line = "  differs: model.norm.weight is F32 [18], expected BF16 [18]\n";
  const size_t first = result.err.find(line);
  ASSERT_NE(first, std::string::npos) << result.err;
  EXPECT_EQ(result.err.find(line, first + 1), std::string::npos) << result.err;
  EXPECT_THAT(result.err, AllOf(HasSubstr("all ranks: loading the checkpoint "), Not(HasSubstr("strict"))));
}

TEST_F(Program, TellsTorchrunWhy) {
  const ProgramResult result = [&] {
    folder_.write("config.json", config({{"max_seq_length", 65}}).dump());
    return run_shell("TORCHELASTIC_ERROR_FILE=" + folder_.path("error.json") + " $FSDP train --config-path " +
                     folder_.path("config.json"));
  }();
  EXPECT_EQ(result.status, 2);
  EXPECT_THAT(result.err, StartsWith("fsdp: error: "));
  EXPECT_THAT(json::parse(folder_.read("error.json"))["message"]["message"].get<std::string>(),
              HasSubstr("max_seq_length"));
}

}  // namespace
}  // namespace fsdp::trainer::program_errors_test
