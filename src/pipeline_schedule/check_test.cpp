#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "fsdp/pipeline_schedule.h"
#include "pipeline_schedule/testing/schedule_text.h"
#include "support/faults/error_of.h"

namespace fsdp::pipeline_schedule::check_test {
namespace {

using testing::csv_of;
using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;
using testing::kNoError;
using testing::schedule_of;

std::string error_of_check(const std::string& csv) {
  return error_of([&] { check_pipeline_schedule(schedule_of(csv)); });
}

TEST(CheckedSchedules, SayHowMuchIsInFlight) {
  const PipelineScheduleFacts passes = check_pipeline_schedule(make_pipeline_schedule("1F1B", 4, 1, 8));
  EXPECT_FALSE(passes.communicates);
  EXPECT_THAT(passes.most_in_flight, ElementsAre(4, 3, 2, 1));
  const PipelineScheduleFacts interleaved =
      check_pipeline_schedule(with_communication(make_pipeline_schedule("Interleaved1F1B", 2, 2, 4)));
  EXPECT_TRUE(interleaved.communicates);
  EXPECT_THAT(interleaved.most_in_flight, ElementsAre(4, 3, 2, 1));
  EXPECT_THAT(interleaved.most_in_flight_of_rank, ElementsAre(5, 3));
}

// A micro-batch is in flight until its weight gradient: I does not end it.
TEST(CheckedSchedules, WeightGradientsKeepMicroBatchesInFlight) {
  EXPECT_THAT(check_pipeline_schedule(schedule_of("0F0,0I0,0F1,0I1,0W0,0W1\n")).most_in_flight, ElementsAre(2));
  EXPECT_THAT(check_pipeline_schedule(schedule_of("0F0,0I0,0W0,0F1,0B1\n")).most_in_flight, ElementsAre(1));
}

TEST(CheckedSchedules, PassesOfAStageAreInOrder) {
  EXPECT_THAT(error_of_check("0F0,0F0,0B0\n"),
              HasSubstr("rank 0, action 2 of 3 (0F0): the forward pass of this micro-batch has run before"));
  EXPECT_THAT(error_of_check("0B0,0F0\n"), HasSubstr("(0B0): the forward pass of this micro-batch has not run"));
  EXPECT_THAT(error_of_check("0F0,0B0,0I0\n"), HasSubstr("(0I0): the backward pass of this micro-batch has run"));
  EXPECT_THAT(error_of_check("0F0,0W0\n"), HasSubstr("(0W0): a W needs the I of its micro-batch before it"));
  EXPECT_THAT(error_of_check("0F0,0B0,0W0\n"), HasSubstr("(0W0): a W needs the I of its micro-batch before it"));
  EXPECT_THAT(error_of_check("0F0\n"), HasSubstr("stage 0 (rank 0): the backward pass of micro-batch 0 is missing"));
  EXPECT_THAT(error_of_check("0F0,0I0\n"), HasSubstr("the pass W of micro-batch 0 is missing"));
  EXPECT_THAT(error_of_check("0F0,0F2,0B0,0B2\n"), HasSubstr("the forward pass of micro-batch 1 is missing"));
}

TEST(CheckedSchedules, GradientsAreReducedOnceAtTheEnd) {
  EXPECT_EQ(error_of_check("0F0,0B0,0REDUCE_GRAD\n"), kNoError);
  EXPECT_THAT(error_of_check("0F0,0REDUCE_GRAD,0B0\n"), HasSubstr("reduced before its last backward pass"));
  EXPECT_THAT(error_of_check("0F0,0B0,0REDUCE_GRAD,0REDUCE_GRAD\n"), HasSubstr("have been reduced before"));
}

TEST(CheckedSchedules, RanksThatWaitForOneAnotherAreNamed) {
  EXPECT_THAT(
      error_of_check("0F0,0B0,0F1,0B1\n"
                     "1F0,1F1,1B0,1B1\n"),
      HasSubstr("comes to a standstill: rank 0, action 2 of 4 (0B0) waits for the gradients of stage 1's inputs "
                "for micro-batch 0; rank 1, action 2 of 4 (1F1) waits for the outputs of stage 0 for "
                "micro-batch 1"));
}

TEST(CheckedSchedules, MessagesMatch) {
  const char* right =
      "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
      "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n";
  EXPECT_EQ(error_of_check(right), kNoError);
  EXPECT_THAT(
      error_of_check("0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
                     "1RECV_F1,1RECV_F0,1F0,1B0,1SEND_B0,1F1,1B1,1SEND_B1\n"),
      HasSubstr("rank 1 receives the outputs of stage 0 for micro-batch 1 as message 1 from rank 0, which sends "
                "the outputs of stage 0 for micro-batch 0: receives must stand in the order of the sends"));
  EXPECT_THAT(error_of_check("0SEND_F0,0F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n"),
              HasSubstr("rank 0, action 1 of 4 (0SEND_F0): there is nothing to send"));
  EXPECT_THAT(error_of_check("0F0,0SEND_F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n"),
              HasSubstr("(0SEND_F0): the outputs of stage 0 for micro-batch 0 have been sent before"));
  EXPECT_THAT(error_of_check("0F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n"), HasSubstr("standstill"));
  EXPECT_THAT(error_of_check("0F0,0SEND_F0,0RECV_B0,0B0\n1F0,1B0,1SEND_B0\n"), HasSubstr("standstill"));
  EXPECT_THAT(error_of_check("0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F0\n"),
              HasSubstr("rank 0 sends 1 messages to rank 1, which receives 2"));
  EXPECT_THAT(error_of_check("0F0,0SEND_F0,1F0,1B0,0B0\n"), HasSubstr("(0SEND_F0): stage 1 is on the same rank"));
  EXPECT_THAT(error_of_check("0RECV_F0,0F0,0B0\n"), HasSubstr("(0RECV_F0): there is no stage -1 to receive from"));
}

TEST(CheckedSchedules, ActionsAreOfTheScheduleItself) {
  PipelineSchedule schedule = make_pipeline_schedule("1F1B", 2, 1, 2);
  const auto error_with = [&](const PipelineAction& action) {
    PipelineSchedule wrong = schedule;
    wrong.of_rank[0][0] = action;
    return error_of([&] { check_pipeline_schedule(wrong); });
  };
  using Kind = PipelineActionKind;
  EXPECT_THAT(error_with({2, Kind::kForward, 0}), HasSubstr("rank 0, action 1 of 4 (2F0): there are 2 stages, from 0"));
  EXPECT_THAT(error_with({1, Kind::kForward, 0}), HasSubstr("(1F0): stage 1 is on rank 1"));
  EXPECT_THAT(error_with({0, Kind::kForward, 2}), HasSubstr("(0F2): there are 2 micro-batches, from 0"));
  EXPECT_THAT(error_with({0, Kind::kForward, {}}), HasSubstr("(0F): an action of this kind has a micro-batch"));
  EXPECT_THAT(error_with({0, Kind::kReshard, 1}), HasSubstr("an action of this kind has no micro-batch"));
  schedule.rank_of_stage[1] = 5;
  EXPECT_THAT(error_of([&] { check_pipeline_schedule(schedule); }), HasSubstr("stage 1 is on rank 5, of 2 ranks"));
}

// Whatever action is left out of a schedule that communicates, or done twice, is missed.
TEST(CheckedSchedules, EveryActionCounts) {
  for (const std::string& name : pipeline_schedule_names()) {
    const int stages_per_rank = name == "1F1B" || name == "GPipe" ? 1 : 2;
    const PipelineSchedule right = with_communication(make_pipeline_schedule(name, 3, stages_per_rank, 6));
    EXPECT_EQ(error_of([&] { check_pipeline_schedule(right); }), kNoError);
    for (size_t rank = 0; rank < right.of_rank.size(); ++rank) {
      for (size_t i = 0; i < right.of_rank[rank].size(); ++i) {
        const PipelineActionKind kind = right.of_rank[rank][i].kind;
        if (kind == PipelineActionKind::kUnshard || kind == PipelineActionKind::kReshard) continue;
        PipelineSchedule twice = right;
        twice.of_rank[rank].insert(twice.of_rank[rank].begin() + static_cast<long>(i), right.of_rank[rank][i]);
        EXPECT_NE(error_of([&] { check_pipeline_schedule(twice); }), kNoError) << name << " " << csv_of(twice);
        if (kind == PipelineActionKind::kReduceGradients) continue;
        PipelineSchedule without = right;
        without.of_rank[rank].erase(without.of_rank[rank].begin() + static_cast<long>(i));
        EXPECT_NE(error_of([&] { check_pipeline_schedule(without); }), kNoError) << name << " " << csv_of(without);
      }
    }
  }
}

}  // namespace
}  // namespace fsdp::pipeline_schedule::check_test
