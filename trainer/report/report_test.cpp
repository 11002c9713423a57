// Tests the output of a run for people and programs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <limits>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "base/sanitizers.h"
#include "fsdp/errors.h"
#include "report/failure_report.h"
#include "report/metrics_file.h"
#include "report/process_memory.h"
#include "report/progress.h"
#include "support/files/temporary_folder.h"

namespace fsdp::trainer::report_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const StepMetrics kMetrics{.step = 3,
                           .loss = 2.5,
                           .grad_norm = 1.25,
                           .learning_rate = 5e-5,
                           .samples_per_second = 101.55,
                           .tokens_per_second = 812.4,
                           .tflops = 0.6612,
                           .peak_memory_bytes = int64_t{3} << 29,
                           .mapped_file_bytes = int64_t{1} << 28};

TEST(MetricsFile, WritesALineAtOnce) {
  testing::TemporaryFolder folder;
  MetricsFile file(folder.path("metrics.jsonl"));
  file.write(kMetrics);
  EXPECT_EQ(
      folder.read("metrics.jsonl"),
      R"({"step":3,"loss":2.5,"grad_norm":1.25,"learning_rate":5e-05,"samples_per_second":101.55,"tokens_per_second":812.4,"tflops":0.6612,)"
      R"("peak_memory_bytes":1610612736,"mapped_file_bytes":268435456})"
      "\n");
  file.write(EvalMetrics{.step = 3, .eval_loss = 2.75});
  EXPECT_THAT(folder.read("metrics.jsonl"), ::testing::EndsWith("{\"step\":3,\"eval_loss\":2.75}\n"));
}

TEST(MetricsFile, StaysJsonWhenTheLossIsNoNumber) {
  testing::TemporaryFolder folder;
  MetricsFile file(folder.path("m"));
  file.write(EvalMetrics{.step = 1, .eval_loss = std::nan("")});
  EXPECT_TRUE(nlohmann::json::parse(folder.read("m"))["eval_loss"].is_null());
}

TEST(MetricsFile, ReportsLossScaling) {
  testing::TemporaryFolder folder;
  MetricsFile file(folder.path("m"));
  StepMetrics metrics = kMetrics;
  metrics.grad_norm = std::numeric_limits<double>::infinity();
  metrics.loss_scaling = {.scale = 1024, .skipped = true, .skipped_steps = 2};
  file.write(metrics);
  const auto line = nlohmann::json::parse(folder.read("m"));
  EXPECT_TRUE(line["grad_norm"].is_null());
  EXPECT_EQ(line["loss_scale"], 1024);
  EXPECT_EQ(line["skipped"], true);
  EXPECT_EQ(line["skipped_steps"], 2);
}

TEST(MetricsFile, ContinuesAfterTheLastWholeLine) {
  testing::TemporaryFolder folder;
  const std::string path = folder.write("m", "{\"step\":1}\n{\"ste");
  {
    MetricsFile file(path);
    file.trim();
    file.write(EvalMetrics{.step = 2, .eval_loss = 3});
  }
  EXPECT_EQ(folder.read("m"), "{\"step\":1}\n{\"step\":2,\"eval_loss\":3.0}\n");
  MetricsFile file(path);
  file.trim();
  EXPECT_EQ(folder.read("m"), "{\"step\":1}\n{\"step\":2,\"eval_loss\":3.0}\n");
}

TEST(MetricsFile, StartsEmptyAndBelongsToOneRun) {
  testing::TemporaryFolder folder;
  const std::string path = folder.write("m", "old\n");
  MetricsFile file(path);
  EXPECT_EQ(folder.read("m"), "old\n");
  EXPECT_EQ(file.start_over(/*keeps=*/false), "");
  EXPECT_EQ(folder.read("m"), "");
  EXPECT_THROW(MetricsFile{path}, FileError);
}

TEST(MetricsFile, NamesThePathThatCannotBeWritten) {
  try {
    MetricsFile file("/no/such/folder/m");
    FAIL();
  } catch (const FileError& error) {
    EXPECT_THAT(error.what(), HasSubstr("/no/such/folder/m: cannot create the file: No such file"));
  }
}

std::string shown(bool is_terminal) {
  char* text = nullptr;
  size_t size = 0;
  std::FILE* out = open_memstream(&text, &size);
  Progress progress(out, is_terminal, 4);
  progress.show(kMetrics);
  StepMetrics last = kMetrics;
  last.step = 4;
  progress.show(last);
  progress.say("saved");
  std::fclose(out);
  const std::string result(text, size);
  std::free(text);
  return result;
}

TEST(Progress, IsOneLineAStepInAFile) {
  const std::string tail = " | loss 2.5000 | grad norm 1.25 | lr 5.00e-05 | 812 tokens/s | 0.661 TFLOPS | 1.5 GiB\n";
  EXPECT_EQ(shown(false), "step 3/4" + tail + "step 4/4" + tail + "saved\n");
}

TEST(Progress, ShowsSamplesWhereThereAreNoTokens) {
  StepMetrics metrics{.step = 1, .samples_per_second = 1634.4};
  EXPECT_THAT(progress_text(metrics, 4), HasSubstr(" | 1634 samples/s | "));
  metrics.samples_per_second = 0.12345;
  EXPECT_THAT(progress_text(metrics, 4), HasSubstr(" | 0.123 samples/s | "));
}

TEST(Progress, TellsTheLossScaleAndSkippedSteps) {
  StepMetrics metrics = kMetrics;
  metrics.loss_scaling = {.scale = 65536};
  EXPECT_THAT(progress_text(metrics, 4), ::testing::EndsWith(" | 1.5 GiB | loss scale 65536"));
  metrics.loss_scaling->skipped = true;
  metrics.grad_norm = -std::nan("");
  EXPECT_THAT(progress_text(metrics, 4),
              ::testing::AllOf(HasSubstr("grad norm nan |"), ::testing::EndsWith("loss scale 65536, skipped")));
}

TEST(Progress, RewritesItsLineOnATerminal) {
  const std::string tail = " | loss 2.5000 | grad norm 1.25 | lr 5.00e-05 | 812 tokens/s | 0.661 TFLOPS | 1.5 GiB";
  EXPECT_EQ(shown(true), "\r\033[Kstep 3/4" + tail + "\r\033[Kstep 4/4" + tail + "\nsaved\n");
}

TEST(ProcessMemory, CountsPagesThatWereTouched) {
  constexpr int64_t kSize = int64_t{256} << 20;
  PeakMemory memory;
  const int64_t before = memory.look().own;
  memory.restart();
  {
    std::vector<char> block(kSize, 1);
  }
  EXPECT_GT(memory.look().own, before + kSize * 9 / 10);
  EXPECT_LT(memory.look().own, kSize * 64);
}

TEST(ProcessMemory, SharedMemoryIsOwn) {
  constexpr int64_t kSize = int64_t{64} << 20;
  const int64_t before = process_memory().own;
  void* shared = mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  ASSERT_NE(shared, MAP_FAILED);
  EXPECT_GT(process_memory().own, before + kSize * 9 / 10);
  munmap(shared, kSize);
}

// Stands for a data set or weights of any size.
TEST(ProcessMemory, MappedFilesAreApart) {
  constexpr int64_t kSize = int64_t{64} << 20;
  testing::TemporaryFolder folder;
  struct statfs system{};
  ASSERT_EQ(statfs(folder.path("").c_str(), &system), 0);
  if (system.f_type == TMPFS_MAGIC) GTEST_SKIP() << "files of a tmpfs are shared memory";
  const std::string path = folder.write("file", std::string(kSize, 'x'));
  PeakMemory memory;
  const int64_t before = memory.look().own, mapped_before = memory.look().mapped;
  const auto map = [&] {
    const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    void* bytes = mmap(nullptr, kSize, PROT_READ, MAP_SHARED | MAP_POPULATE, file, 0);
    close(file);
    return bytes;
  };
  void* early = map();
  EXPECT_GT(memory.look().mapped, mapped_before + kSize * 9 / 10);
  munmap(early, kSize);
  memory.restart();
  void* late = map();
  memory.look();
  munmap(late, kSize);
  EXPECT_LT(memory.look().own, before + kSize / 2);
}

#if defined(__GLIBC__) && !FSDP_ADDRESS_SANITIZER
int64_t page_faults_of_a_large_block() {
  rusage before{}, after{};
  getrusage(RUSAGE_SELF, &before);
  {
    std::vector<char> block(int64_t{64} << 20, 1);
  }
  getrusage(RUSAGE_SELF, &after);
  return after.ru_minflt - before.ru_minflt;
}

TEST(ProcessMemory, FreedMemoryIsKept) {
  EXPECT_GT(page_faults_of_a_large_block(), 10000);
  EXPECT_GT(page_faults_of_a_large_block(), 10000);
  const auto keep = [] {
    keep_freed_memory();
    page_faults_of_a_large_block();
    std::_Exit(page_faults_of_a_large_block() < 100 ? 0 : 1);  // this process has no threads of other tests
  };
  EXPECT_EXIT(keep(), ::testing::ExitedWithCode(0), "");
}
#endif

TEST(FailureReport, NamesTheRankOnce) {
  ::testing::internal::CaptureStderr();
  report_failure(1, 13, "rank 1 cannot finish");
  report_failure(1, 13, "rank 12 is lost");
  report_failure(1, 13, "rank 1: no memory");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(),
            "rank 1 cannot finish\nrank 1: rank 12 is lost\nrank 1: no memory\n");
}

TEST(FailureReport, OfAProcessAloneNamesTheProgram) {
  ::testing::internal::CaptureStderr();
  report_failure(0, 1, "no memory");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "fsdp: error: no memory\n");
}

TEST(FailureReport, IsWrittenToStderrAndForTorchrun) {
  testing::TemporaryFolder folder;
  setenv("TORCHELASTIC_ERROR_FILE", folder.path("error.json").c_str(), 1);
  ::testing::internal::CaptureStderr();
  report_failure(2, 3, "no memory \xff");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "rank 2: no memory \xff\n");
  unsetenv("TORCHELASTIC_ERROR_FILE");
  const auto record = nlohmann::json::parse(folder.read("error.json"))["message"];
  EXPECT_THAT(record["message"].get<std::string>(), HasSubstr("no memory"));
  EXPECT_THAT(record["extraInfo"]["py_callstack"].get<std::string>(), HasSubstr("no memory"));
  EXPECT_GT(std::stoll(record["extraInfo"]["timestamp"].get<std::string>()), 0);
}

}  // namespace
}  // namespace fsdp::trainer::report_test
