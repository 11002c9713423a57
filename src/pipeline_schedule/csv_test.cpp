#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fsdp/pipeline_schedule.h"
#include "pipeline_schedule/testing/schedule_text.h"
#include "support/faults/error_of.h"

namespace fsdp::pipeline_schedule::csv_test {
namespace {

using testing::csv_of;
using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;
using testing::schedule_of;

TEST(ScheduleFiles, AreReadAsTheyWereWritten) {
  for (const std::string& name : pipeline_schedule_names()) {
    const int stages_per_rank = name == "1F1B" || name == "GPipe" ? 1 : 2;
    const PipelineSchedule passes = make_pipeline_schedule(name, 2, stages_per_rank, 4);
    for (const PipelineSchedule& schedule : {passes, with_communication(passes)}) {
      const PipelineSchedule read = schedule_of(csv_of(schedule));
      EXPECT_EQ(read.of_rank, schedule.of_rank);
      EXPECT_EQ(read.rank_of_stage, schedule.rank_of_stage);
      EXPECT_EQ(read.micro_batches, 4);
    }
  }
}

// As PyTorch's _dump_csv writes orders with bubbles: "\r\n", and empty cells.
TEST(ScheduleFiles, EmptyCellsAndLinesAreLeftOut) {
  const PipelineSchedule read = schedule_of("0F0,,,0B0\r\n\r\n,1F0, 1B0,\r\n");
  EXPECT_EQ(csv_of(read), "0F0,0B0\n1F0,1B0\n");
  EXPECT_THAT(read.rank_of_stage, ElementsAre(0, 1));
}

TEST(ScheduleFiles, ActionsHaveOneForm) {
  for (const char* text : {"0F0", "12B34", "2I0", "2W1", "1UNSHARD", "1RESHARD", "0REDUCE_GRAD", "3SEND_F1", "3RECV_F1",
                           "3SEND_B1", "3RECV_B1"}) {
    EXPECT_EQ(to_string(parse_pipeline_action(text)), text);
  }
  for (const char* text : {"", "F0", "0F", "0", "0X0", "0F0x", "0UNSHARD1", "-1F0", "0F-1", "99999999999F0", "0f0",
                           "(0F0;1B0)OVERLAP_F_B"}) {
    EXPECT_THAT(error_of([&] { parse_pipeline_action(text); }), HasSubstr("is no action of a pipeline")) << text;
  }
}

TEST(ScheduleFiles, ErrorsNameLineAndCell) {
  EXPECT_THAT(error_of([] { schedule_of("0F0,0B0\n1F0,1G0\n"); }),
              HasSubstr("test.csv, line 2, cell 2: \"1G0\" is no action of a pipeline"));
  EXPECT_THAT(error_of([] { schedule_of("0F0,0B0\n0F1,0B1\n"); }),
              HasSubstr("test.csv, lines 1 and 2: stage 0 stands in both"));
  EXPECT_THAT(error_of([] { schedule_of("0F0,0B0,2F0\n"); }), HasSubstr("test.csv: stage 1 of 3 stands in no line"));
  EXPECT_THAT(error_of([] { schedule_of("2000000000F0\n"); }), HasSubstr("no action of some stage before stage 2000"));
  EXPECT_THAT(error_of([] { schedule_of("\n ,\n"); }), HasSubstr("test.csv has no actions of a pipeline"));
}

}  // namespace
}  // namespace fsdp::pipeline_schedule::csv_test
