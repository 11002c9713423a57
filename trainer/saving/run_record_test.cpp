// Tests records of runs, and the errors for invalid records.
#include "saving/run_record.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/faults/error_of.h"

namespace fsdp::trainer::run_record_test {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

json own() {
  return to_json(RunRecord{.step = 7,
                           .updates = 5,
                           .skipped_steps = 2,
                           .loss_scaling = GradScalerState(),
                           .position = {1, 12},
                           .dataset_samples = 40,
                           .data_checksum = "0f",
                           .world_size = 2,
                           .config = {{"seed", 1}}});
}

json state_of(const json& user, const json& leaves = json::object()) {
  return {{"user", user}, {"optimizer", {{"leaves", leaves}, {"groups", json::array()}}}};
}

std::string error(const json& state) {
  return testing::error_of([&] { read_run_record(state, "folder"); });
}

TEST(RunRecord, ComesBack) {
  const RunRecord record = read_run_record(state_of(own()), "folder");
  EXPECT_EQ(to_json(record), own());
  EXPECT_FALSE(record.is_foreign);
}

TEST(RunRecord, OfThisProgramMustBeWhole) {
  for (const char* key : {"step", "updates", "skipped_steps", "data", "dataset_samples", "world_size", "config"}) {
    const auto said = [&](const char* what) {
      return AllOf(HasSubstr("folder: is not a checkpoint of `fsdp train`"), HasSubstr(what),
                   HasSubstr('"' + std::string(key) + '"'), Not(HasSubstr("json.exception")));
    };
    json without = own(), other = own(), negative = own();
    without.erase(key);
    EXPECT_THAT(error(state_of(without)), said("lacks"));
    other[key] = "text";
    EXPECT_THAT(error(state_of(other)), said("has \"text\" as"));
    if (!negative[key].is_number()) continue;
    negative[key] = -1;
    EXPECT_THAT(error(state_of(negative)), said("has -1 as"));
  }
}

// The run has taken as many steps as the optimizer; a parameter without gradients in some steps has fewer.
TEST(RunRecord, OfAnotherProgramHasTheStepsOfTheOptimizer) {
  const json leaves = {{"a", {{"step", 3.0}}}, {"b", {{"step", 7.0}}}, {"table", json::object()}};
  for (const json& user : {json(), json{{"step", 99}}, json("text")}) {
    const RunRecord record = read_run_record(state_of(user, leaves), "folder");
    EXPECT_TRUE(record.is_foreign);
    EXPECT_EQ(record.step, 7);
    EXPECT_EQ(record.updates, 7);
  }
  EXPECT_THAT(error(state_of(json())), AllOf(HasSubstr("holds no optimizer state"), HasSubstr("--to hf")));
  EXPECT_THAT(error(json::object()), HasSubstr("holds no optimizer state"));
  EXPECT_THAT(error(state_of(json(), {{"a", {{"step", "x"}}}})), HasSubstr("has \"x\" as its step"));
  EXPECT_THAT(error(state_of(json(), {{"a", {{"step", -2}}}})), HasSubstr("has -2 as its step"));
}

TEST(RunRecord, NamesTheOptionsOfEachGroupOnce) {
  json state = state_of(json());
  for (const double lr : {0.5, 0.5, 0.25}) state["optimizer"]["groups"].push_back({{"options", {{"lr", lr}}}});
  EXPECT_EQ(options_of_groups(state), R"({"lr":0.25}, {"lr":0.5})");
  EXPECT_EQ(options_of_groups(json::object()), "");
}

}  // namespace
}  // namespace fsdp::trainer::run_record_test
