#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fsdp/pipeline_schedule.h"
#include "pipeline_schedule/testing/schedule_text.h"
#include "support/faults/error_of.h"

// That orders are those of torch.distributed.pipelining is tested in tests/python/test_pipeline_schedules.py.
namespace fsdp::pipeline_schedule::make_schedule_test {
namespace {

using testing::csv_of;
using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;

std::string error_of_making(const char* name, int ranks, int stages_per_rank, int micro_batches) {
  return error_of([&] { make_pipeline_schedule(name, ranks, stages_per_rank, micro_batches); });
}

TEST(MadeSchedules, AreWrittenAsInThePapers) {
  EXPECT_EQ(csv_of(make_pipeline_schedule("GPipe", 2, 1, 2)),
            "0F0,0F1,0B0,0B1\n"
            "1F0,1F1,1B0,1B1\n");
  EXPECT_EQ(csv_of(make_pipeline_schedule("1F1B", 2, 1, 3)),
            "0F0,0F1,0B0,0F2,0B1,0B2\n"
            "1F0,1B0,1F1,1B1,1F2,1B2\n");
  EXPECT_EQ(csv_of(make_pipeline_schedule("Interleaved1F1B", 2, 2, 2)),
            "0F0,0F1,2F0,2F1,2B0,2B1,0B0,0B1\n"
            "1F0,1F1,3F0,3B0,3F1,3B1,1B0,1B1\n");
  EXPECT_EQ(csv_of(make_pipeline_schedule("InterleavedZeroBubble", 2, 1, 3)),
            "0F0,0F1,0I0,0W0,0F2,0I1,0W1,0I2,0W2\n"
            "1F0,1I0,1F1,1I1,1W0,1F2,1I2,1W1,1W2\n");
  EXPECT_EQ(csv_of(make_pipeline_schedule("ZBVZeroBubble", 1, 2, 2)),
            "0F0,1F0,1I0,1W0,0F1,0I0,0W0,1F1,1I1,1W1,0I1,0W1\n");
}

TEST(MadeSchedules, AreNamedInAnyCase) {
  EXPECT_THAT(pipeline_schedule_names(),
              ElementsAre("GPipe", "1F1B", "Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble"));
  for (const std::string& name : pipeline_schedule_names()) {
    std::string lower = name;
    for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    EXPECT_EQ(csv_of(make_pipeline_schedule(lower, 2, name == "ZBVZeroBubble" ? 2 : 1, 4)),
              csv_of(make_pipeline_schedule(name, 2, name == "ZBVZeroBubble" ? 2 : 1, 4)));
  }
}

TEST(MadeSchedules, WrongArgumentsAreNamed) {
  EXPECT_THAT(error_of_making("2F2B", 2, 1, 2),
              HasSubstr("unknown pipeline schedule \"2F2B\": expected one of GPipe, 1F1B, Interleaved1F1B, "
                        "InterleavedZeroBubble, ZBVZeroBubble"));
  EXPECT_THAT(error_of_making("1F1B", 0, 1, 2), HasSubstr("at least 1 rank, not 0"));
  EXPECT_THAT(error_of_making("1F1B", 2, 1, 0), HasSubstr("at least 1 micro-batch, not 0"));
  EXPECT_THAT(error_of_making("1F1B", 2, 2, 2), HasSubstr("1F1B takes 1 stage a rank, not 2"));
  EXPECT_THAT(error_of_making("ZBVZeroBubble", 2, 1, 2), HasSubstr("ZBVZeroBubble takes 2 stages a rank, not 1"));
  EXPECT_THAT(error_of_making("Interleaved1F1B", 2, 0, 2), HasSubstr("takes at least 1 stage a rank, not 0"));
  EXPECT_THAT(error_of_making("Interleaved1F1B", 2, 2, 5),
              HasSubstr("rounded down = 2 of them, which must divide their number: 5 micro-batches over 2 ranks do not "
                        "fit, 4 do"));
}

TEST(MadeSchedules, CommunicationIsAddedToPassesAlone) {
  const PipelineSchedule passes = make_pipeline_schedule("1F1B", 2, 1, 1);
  EXPECT_EQ(csv_of(with_communication(passes)),
            "0UNSHARD,0F0,0SEND_F0,0RECV_B0,0B0,0REDUCE_GRAD,0RESHARD\n"
            "1UNSHARD,1RECV_F0,1F0,1B0,1SEND_B0,1REDUCE_GRAD,1RESHARD\n");
  EXPECT_THAT(error_of([&] { with_communication(with_communication(passes)); }),
              HasSubstr("rank 0, action 1 of 7 (0UNSHARD): communication is added to an order of passes"));
  EXPECT_THAT(error_of([&] { with_communication(passes, 0); }), HasSubstr("max_active_stages must be at least 1"));
}

TEST(MadeSchedules, StagesThatAreNotUsedSoonAreReleased) {
  const PipelineSchedule passes = make_pipeline_schedule("Interleaved1F1B", 1, 3, 1);
  EXPECT_EQ(csv_of(with_communication(passes, 1)),
            "0UNSHARD,0F0,0RESHARD,1UNSHARD,1F0,1RESHARD,2UNSHARD,2F0,2B0,2REDUCE_GRAD,2RESHARD,1UNSHARD,1B0,"
            "1REDUCE_GRAD,1RESHARD,0UNSHARD,0B0,0REDUCE_GRAD,0RESHARD\n");
  EXPECT_EQ(csv_of(with_communication(passes, 3)),
            "0UNSHARD,1UNSHARD,2UNSHARD,0F0,1F0,2F0,2B0,2REDUCE_GRAD,2RESHARD,1B0,1REDUCE_GRAD,1RESHARD,0B0,"
            "0REDUCE_GRAD,0RESHARD\n");
}

}  // namespace
}  // namespace fsdp::pipeline_schedule::make_schedule_test
