// Tests of the fuzzer itself: cases drawn from a seed stay the same, and a failure is detected, distinguished from
// others and made small.
#include <gtest/gtest.h>

#include "fuzz_training/actions.h"
#include "fuzz_training/generator.h"
#include "fuzz_training/isolate.h"
#include "fuzz_training/modules.h"
#include "fuzz_training/printer.h"
#include "fuzz_training/record.h"
#include "fuzz_training/reducer.h"
#include "fuzz_training/rules.h"

namespace fsdp::fuzz {
namespace {

using std::chrono::seconds;

Case one_step() { return {.steps = {{}}}; }

TEST(FuzzTraining, ASeedIsOneCaseThatJsonHolds) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    const Case training = case_of_seed(seed, false);
    EXPECT_FALSE(objection(training)) << seed;
    EXPECT_EQ(to_json(training), to_json(case_of_seed(seed, false)));
    EXPECT_EQ(to_json(training), to_json(case_from_json(to_json(training))));
  }
  EXPECT_EQ(to_json(one_step()).dump(), R"({"steps":[{}]})");
  EXPECT_THROW(case_from_json(Json::parse(R"({"step":[{}]})")), std::runtime_error);
}

TEST(FuzzTraining, EveryKindAndActionIsDrawn) {
  std::set<std::string> kinds, actions;
  for (uint64_t seed = 1; seed <= 3000; ++seed) {
    const Case training = case_of_seed(seed, true);
    for_each_layer(training.model.layers, [&](const Layer& layer, int) { kinds.insert(layer.kind); });
    for_each_action_list(training.steps, [&](const auto& list) { actions.insert(list.begin(), list.end()); });
  }
  EXPECT_EQ(kinds.size(), layer_kinds().size() + 1);  // and groups
  EXPECT_EQ(actions.size(), all_actions().size());
}

TEST(FuzzTraining, RefusedCombinationsAreNoCases) {
  Case training = one_step();
  EXPECT_FALSE(objection(training));
  training.sharding = {.strategy = "no", .reshard = 1};
  EXPECT_TRUE(objection(training));
  training.sharding = {.reshard = 2};
  EXPECT_TRUE(objection(training)) << "2 of 2 ranks";
  training.ranks = 4;
  EXPECT_FALSE(objection(training));
  training.steps[0].passes[0].between = {"write"};
  EXPECT_TRUE(objection(training));
}

TEST(FuzzTraining, PartsAreComparedWhereTheyLie) {
  Record got, want;
  const torch::Tensor whole = torch::arange(6, at::kDouble).view({2, 3});
  want.add("gradient", whole);
  got.add_part("gradient", torch::tensor({3.0, 1.0}, at::kDouble), {.begin = 1, .end = 3, .strides = {1, 2}});
  EXPECT_FALSE(first_difference(got, 0, {}, want, 1e-10));
  got.add_part("gradient", torch::tensor({3.0, 1.0 + 1e-8}, at::kDouble), {.begin = 1, .end = 3, .strides = {1, 2}});
  const auto difference = first_difference(got, 0, {}, want, 1e-10);
  ASSERT_TRUE(difference);
  EXPECT_EQ(difference->name, "gradient");
}

TEST(FuzzTraining, MissingTensorsAndNansAreDifferences) {
  Record want;
  want.add("gradient", torch::zeros({2}));
  for (const torch::Tensor& value : {torch::Tensor(), torch::full({2}, NAN), torch::ones({2})}) {
    Record got;
    got.add("gradient", value);
    EXPECT_TRUE(first_difference(got, 0, {}, want, 1e-10));
  }
  EXPECT_TRUE(first_difference({}, 0, want, {}, 1e-10));
}

// The expected result was determined by hand: the smallest case that contains an LSTM and a read.
TEST(FuzzTraining, AFailureIsMadeSmall) {
  const RunCase fails_with_lstm_and_reads = [](const Case& training) -> Verdict {
    bool has_lstm = false;
    for_each_layer(training.model.layers, [&](const Layer& layer, int) { has_lstm |= layer.kind == "lstm"; });
    bool reads = false;
    for (const Step& step : training.steps) reads |= !step.ready.empty();
    if (!has_lstm) return {false, "another failure", ""};
    return {!reads, "a failure", ""};
  };
  Case training = {.ranks = 3, .communicator = "shm", .optimizer = "adam", .steps = {{}, {}, {}}};
  training.model = {.width = 7, .layers = {{}, {.kind = "group", .children = {{}, {.kind = "lstm", .size = 7}}}}};
  training.sharding = {.reshard = 1, .wrap = "layers", .strict = true};
  training.steps[1] = {.zero = "skip", .passes = {{.forwards = 2}, {}}, .ready = {"read", "pin"}, .clip = 0.5};
  Verdict failure{false, "a failure", ""};
  const Case small = reduce(training, failure, fails_with_lstm_and_reads, seconds(60));
  EXPECT_EQ(to_json(small).dump(), R"({"ranks":1,"model":{"layers":[{"kind":"lstm"}]},"steps":[{"ready":["read"]}]})");
  EXPECT_NE(failure_text(5, small, failure).find(R"(.layers = {{.kind = "lstm"}})"), std::string::npos);
}

TEST(FuzzTraining, TheEndOfAProcessIsTheFailureOfItsCase) {
  Case training = one_step();
  training.optimizer = "none";
  const Verdict wrong = run_isolated(training, seconds(60));
  EXPECT_FALSE(wrong.passed);
  EXPECT_NE(wrong.text.find("unknown optimizer 'none'"), std::string::npos) << wrong.text;
  training = one_step();
  training.model.batch = int64_t{1} << 50;
  EXPECT_FALSE(run_isolated(training, seconds(60)).passed);
  const Verdict hangs = run_isolated(one_step(), seconds(0));
  EXPECT_EQ(hangs.way, "hang");
  EXPECT_TRUE(run_isolated(one_step(), seconds(60)).passed);
}

}  // namespace
}  // namespace fsdp::fuzz
