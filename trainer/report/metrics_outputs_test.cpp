// Tests reading metrics.jsonl, and the files that report_to names. tests/python/test_report.py reads the event files
// with TensorBoard itself.
#include "report/metrics_outputs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <limits>
#include <set>

#include "fsdp/errors.h"
#include "report/crc32c.h"
#include "support/files/temporary_folder.h"

namespace fsdp::trainer::metrics_outputs_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Crc32c, OfTheExamplesInRfc3720) {
  EXPECT_EQ(crc32c("123456789"), 0xE3069283u);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAu);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62A8AB43u);
  EXPECT_EQ(crc32c(""), 0u);
}

// Returns "1 2 2e" for lines of the steps 1 and 2 and an evaluation after step 2.
std::string steps_that_count(const testing::TemporaryFolder& folder, const std::string& text) {
  std::string steps;
  for (const MetricsLine& line : read_metrics(folder.write("m", text))) {
    steps += (steps.empty() ? "" : " ") + std::to_string(line.step) + (line.is_evaluation() ? "e" : "");
  }
  return steps;
}

std::string line_of(int64_t step) { return "{\"step\":" + std::to_string(step) + ",\"loss\":1}\n"; }
std::string evaluation_of(int64_t step) { return "{\"step\":" + std::to_string(step) + ",\"eval_loss\":1}\n"; }

TEST(ReadMetrics, AStepReplacesItsLinesAndLaterOnes) {
  testing::TemporaryFolder folder;
  EXPECT_EQ(steps_that_count(folder, line_of(1) + line_of(2) + evaluation_of(2)), "1 2 2e");
  EXPECT_EQ(steps_that_count(folder, line_of(1) + line_of(2) + line_of(3) + evaluation_of(3) + line_of(2)), "1 2");
  EXPECT_EQ(steps_that_count(folder, line_of(2) + evaluation_of(2) + evaluation_of(2)), "2 2e");
  EXPECT_EQ(steps_that_count(folder, line_of(2) + line_of(3) + evaluation_of(2)), "2 2e");
  EXPECT_EQ(read_metrics(folder.write("m", line_of(1) + "{\"step\":1,\"loss\":7}\n")).at(0).values.at("loss"), 7);
}

TEST(ReadMetrics, LeavesOutALineWithoutItsEnd) {
  testing::TemporaryFolder folder;
  EXPECT_EQ(steps_that_count(folder, line_of(1) + "{\"step\":2,\"lo"), "1");
  EXPECT_EQ(steps_that_count(folder, ""), "");
}

TEST(ReadMetrics, NamesTheLineThatIsWrong) {
  testing::TemporaryFolder folder;
  const auto error_of = [&](const std::string& line) {
    try {
      read_metrics(folder.write("m", line_of(1) + line + "\n"));
    } catch (const FileError& error) {
      const std::string prefix = folder.path("m") + ":2:";
      EXPECT_THAT(error.what(), ::testing::StartsWith(prefix));
      return std::string(error.what()).substr(prefix.size());
    }
    return std::string("no error");
  };
  EXPECT_THAT(error_of("{\"step\":2,\"loss\":}"), HasSubstr("18"));
  EXPECT_THAT(error_of("{\"step\":2,\"loss\":1e999}"), HasSubstr("1e999"));
  EXPECT_THAT(error_of(""), ::testing::Not("no error"));
  EXPECT_EQ(error_of("[1]"), " is not a JSON object: [1]");
  for (const char* line : {"{\"loss\":1}", "{\"step\":-1}", "{\"step\":1.5}", "{\"step\":\"2\"}", "{\"step\":1e30}",
                           "{\"step\":18446744073709551615}"}) {
    EXPECT_THAT(error_of(line), HasSubstr("\"step\" is not an integer")) << line;
  }
  EXPECT_THAT(error_of("{\"step\":2,\"loss\":\"</script>\"}"), HasSubstr("\"loss\" is neither a number"));
  EXPECT_THROW(read_metrics(folder.path("nothing")), FileError);
}

const StepMetrics kEverything{
    .step = 3,
    .loss = 2.5,
    .grad_norm = std::numeric_limits<double>::infinity(),
    .learning_rate = 5e-5,
    .samples_per_second = 101.5,
    .tokens_per_second = 812.5,
    .tflops = 0.5,
    .hardware_tflops = 0.625,
    .peak_memory_bytes = 1000,
    .mapped_file_bytes = 1500,
    .peak_device_memory_bytes = 2000,
    .pipeline_bubble = 0.25,
    .loss_scaling = StepMetrics::LossScaling{.scale = 8, .skipped = true, .skipped_steps = 1}};

TEST(MetricsCsv, HasAColumnForEveryKey) {
  const std::set<std::string> columns(csv_columns().begin(), csv_columns().end());
  for (const nlohmann::json line : {metrics_line(kEverything), metrics_line(EvalMetrics{})}) {
    for (const auto& [key, value] : line.items()) EXPECT_TRUE(columns.count(key)) << key;
  }
}

std::vector<std::string> rows_of(const std::string& csv) {
  std::vector<std::string> rows;
  for (size_t begin = 0, end; (end = csv.find('\n', begin)) != std::string::npos; begin = end + 1) {
    rows.push_back(csv.substr(begin, end - begin));
  }
  return rows;
}

TEST(MetricsOutputs, CsvIsWholeAfterEachLine) {
  testing::TemporaryFolder folder;
  MetricsOutputs outputs(folder.path(""), {ReportTo::kCsv});
  outputs.start(0);
  EXPECT_EQ(rows_of(folder.read("metrics.csv")).size(), 1);
  outputs.write(kEverything);
  outputs.write(EvalMetrics{.step = 3, .eval_loss = 2.75});
  EXPECT_THAT(
      rows_of(folder.read("metrics.csv")),
      ElementsAre(
          "step,loss,eval_loss,grad_norm,learning_rate,samples_per_second,tokens_per_second,tflops,"
          "hardware_tflops,peak_memory_bytes,mapped_file_bytes,peak_device_memory_bytes,pipeline_bubble,loss_scale,"
          "skipped,skipped_steps",
          "3,2.5,,nan,5e-05,101.5,812.5,0.5,0.625,1000,1500,2000,0.25,8.0,true,1", "3,,2.75,,,,,,,,,,,,,"));
  EXPECT_FALSE(std::filesystem::exists(folder.path("runs")));
}

// Replaces the file even if the run did not write it before.
TEST(MetricsOutputs, CsvContinuesFromMetricsJsonl) {
  testing::TemporaryFolder folder;
  folder.write("metrics.jsonl", line_of(1) + line_of(2) + line_of(3) + "{\"st");
  folder.write("metrics.csv", "left over");
  MetricsOutputs outputs(folder.path(""), {ReportTo::kCsv});
  outputs.start(2);
  outputs.write(kEverything);
  EXPECT_THAT(rows_of(folder.read("metrics.csv")),
              ElementsAre(HasSubstr("step,"), "1,1,,,,,,,,,,,,,,", "2,1,,,,,,,,,,,,,,", HasSubstr("3,2.5,")));
}

TEST(MetricsOutputs, NothingButMetricsJsonlUnlessAsked) {
  testing::TemporaryFolder folder;
  MetricsOutputs outputs(folder.path(""), {});
  outputs.start(0);
  outputs.write(kEverything);
  EXPECT_NE(folder.read("metrics.jsonl"), "");
  EXPECT_FALSE(std::filesystem::exists(folder.path("metrics.csv")));
  EXPECT_FALSE(std::filesystem::exists(folder.path("runs")));
}

TEST(TensorBoardFile, SortsAfterEarlierFilesOfItsFolder) {
  testing::TemporaryFolder folder;
  const TensorBoardFile first(folder.path("runs"), 0), second(folder.path("runs"), 5);
  EXPECT_LT(first.path(), second.path());
  folder.write("runs/events.out.tfevents.9999999998.elsewhere.1.0", "");
  EXPECT_THAT(TensorBoardFile(folder.path("runs"), 5).path(), HasSubstr("/events.out.tfevents.9999999999."));
}

}  // namespace
}  // namespace fsdp::trainer::metrics_outputs_test
