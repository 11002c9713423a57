// Runs `fsdp schedule` as a user does.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "support/files/temporary_folder.h"
#include "testing/program.h"

namespace fsdp::trainer::schedule_command_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

std::string printed(const std::string& arguments) {
  const ProgramResult result = run_shell("$FSDP schedule " + arguments);
  EXPECT_EQ(result.status, 0) << arguments << result.err;
  EXPECT_THAT(result.err, IsEmpty());
  return result.out;
}

std::string error_of(const std::string& arguments, int status) {
  const ProgramResult result = run_shell("$FSDP schedule " + arguments);
  EXPECT_EQ(result.status, status) << arguments;
  return result.err;
}

TEST(ScheduleCommand, PrintsWhoWorksWhen) {
  EXPECT_EQ(printed("1f1b --ranks 2 --micro-batches 3"),
            "1f1b: 2 stages on 2 ranks, 3 micro-batches, bubble 25.0 %\n"
            "micro-batches in flight at most, by rank: 2, 1\n"
            "rank 0 |F0|F1|     |B0   |F2|B1   |  |B2   |\n"
            "rank 1    |F0|B0   |F1|B1   |F2|B2   |\n");
}

TEST(ScheduleCommand, NamesTheStagesOfARankWithSeveral) {
  EXPECT_THAT(printed("Interleaved1F1B --ranks 2 --stages-per-rank 2 --micro-batches 2"),
              AllOf(HasSubstr("4 stages on 2 ranks, 2 micro-batches"), HasSubstr("rank 0 |0F0|0F1|2F0|2F1")));
}

TEST(ScheduleCommand, TakesOtherCosts) {
  // With free backward passes the bubble is that of forward alone.
  EXPECT_THAT(printed("GPipe --ranks 2 --micro-batches 3 --costs 2,0,0"), HasSubstr("bubble 25.0 %"));
  EXPECT_THAT(printed("GPipe --ranks 2 --micro-batches 1 --costs 1,1,1 --send 3"), HasSubstr("bubble 75.0 %"));
}

TEST(ScheduleCommand, ReadsWhatItWrites) {
  const testing::TemporaryFolder folder;
  const std::string file = folder.path() / "schedule.csv";
  const std::string from_name = printed("1F1B --ranks 3 --micro-batches 4 --csv " + file);
  const auto after_title = [](const std::string& text) { return text.substr(text.find(':')); };
  EXPECT_EQ(after_title(printed(file + " --communication --csv " + file)), after_title(from_name));
  EXPECT_EQ(after_title(printed(file)), after_title(from_name));
}

TEST(ScheduleCommand, Draws) {
  const testing::TemporaryFolder folder;
  const std::string file = folder.path() / "schedule.svg";
  printed("ZBVZeroBubble --ranks 2 --stages-per-rank 2 --micro-batches 4 --svg " + file);
  const ProgramResult drawn = run_shell("cat " + file);
  EXPECT_THAT(drawn.out,
              AllOf(StartsWith("<svg "), HasSubstr("ZBVZeroBubble: 4 stages on 2 ranks"),
                    HasSubstr("<title>3W3</title>"), HasSubstr("weight gradient (W)"), Not(HasSubstr("backward (B)"))));
}

TEST(ScheduleCommand, NamesWhatIsWrong) {
  EXPECT_THAT(error_of("2F2B", 1),
              HasSubstr("fsdp schedule: \"2F2B\" is neither a schedule (one of GPipe, 1F1B, Interleaved1F1B, "
                        "InterleavedZeroBubble, ZBVZeroBubble) nor a file that can be read"));
  EXPECT_THAT(error_of("1F1B --stages-per-rank 2", 1), HasSubstr("1F1B takes 1 stage a rank, not 2"));
  EXPECT_THAT(error_of("1F1B --costs 1,2", 2), HasSubstr("--costs"));
  EXPECT_THAT(error_of("1F1B --svg /no/such/folder/x.svg", 1), HasSubstr("cannot write /no/such/folder/x.svg"));
  const testing::TemporaryFolder folder;
  const std::string file = folder.path() / "wrong.csv";
  run_shell("printf '0F0,0B0\\n1B0,1F0\\n' > " + file);
  EXPECT_THAT(error_of(file, 1), HasSubstr("1B0"));
}

}  // namespace
}  // namespace fsdp::trainer::schedule_command_test
