// The changes that are shown, and the plans that are made for them.
#include "planner/advice/single_changes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "config/errors.h"

namespace fsdp::planner::single_changes_test {
namespace {

using ::testing::ElementsAre;
using Overrides = std::vector<std::string>;

const Overrides kFused = {"fused_loss=true"};
const Overrides kRecompute = {"activation_checkpointing=true"};
const Overrides kHalfBatch = {"train_batch_size=2", "gradient_accumulation_steps=2"};
const Overrides kOffload = {"cpu_offload=true"};

// A device of 100 bytes.
nlohmann::ordered_json needs(int64_t total) {
  const char* verdict = total <= 100 ? "fits" : "does not fit";
  return {{"memory", {{"verdict", verdict}, {"device", {{"verdict", verdict}, {"total", total}}}}}};
}

// Answers like make_plan: 1000 bytes, less those that each override saves.
class Answers {
 public:
  explicit Answers(std::map<std::string, int64_t> saved) : saved_(std::move(saved)) {}

  std::vector<Overrides> shown() {
    std::vector<Overrides> sets;
    const auto plan = [&](const Overrides& overrides) { return answer(overrides); };
    for (const auto& result : planned_changes(trainer::Config{}, needs(1000), plan)) sets.push_back(result.at("set"));
    return sets;
  }
  int plans = 0;

 private:
  nlohmann::ordered_json answer(const Overrides& overrides) {
    ++plans;
    int64_t total = 1000;
    for (const std::string& one : overrides) {
      const auto saved = saved_.find(one);
      if (saved == saved_.end()) throw trainer::ConfigError("refused");
      total -= saved->second;
    }
    return needs(total);
  }

  std::map<std::string, int64_t> saved_;
};

Overrides joined(Overrides first, const Overrides& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

TEST(SingleChanges, ChangesThatSaveAreShown) {
  Answers answers({{"fused_loss=true", 0},
                   {"activation_checkpointing=true", 950},
                   {"train_batch_size=2", 400},
                   {"gradient_accumulation_steps=2", 0}});
  EXPECT_THAT(answers.shown(), ElementsAre(kRecompute, kHalfBatch));
  EXPECT_EQ(answers.plans, 4);  // that of an offload is refused; none is made of several changes
}

TEST(SingleChanges, ALateChangeThatIsEnoughNeedsNoSequence) {
  Answers answers({{"fused_loss=true", 10}, {"activation_checkpointing=true", 20}, {"cpu_offload=true", 900}});
  EXPECT_THAT(answers.shown(), ElementsAre(kFused, kRecompute, kOffload));
  EXPECT_EQ(answers.plans, 4);
}

TEST(SingleChanges, TheShortestSequenceThatIsEnoughComesLast) {
  Answers answers({{"fused_loss=true", 300},
                   {"activation_checkpointing=true", 300},
                   {"train_batch_size=2", 300},
                   {"gradient_accumulation_steps=2", 0},
                   {"cpu_offload=true", 50}});
  const Overrides three = joined(joined(kFused, kRecompute), kHalfBatch);
  EXPECT_THAT(answers.shown(), ElementsAre(kFused, kRecompute, kHalfBatch, kOffload, three));
  EXPECT_EQ(answers.plans, 6);
}

TEST(SingleChanges, AllAreShownTogetherIfNoSequenceIsEnough) {
  Answers answers({{"fused_loss=true", 100}, {"activation_checkpointing=true", 100}});
  EXPECT_THAT(answers.shown(), ElementsAre(kFused, kRecompute, joined(kFused, kRecompute)));
}

}  // namespace
}  // namespace fsdp::planner::single_changes_test
