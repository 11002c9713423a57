// The choices for several configs and clusters.
#include "planner/search/space.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "config/config_reader.h"
#include "config/errors.h"

namespace fsdp::planner::space_test {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::UnorderedElementsAre;

trainer::Config config(nlohmann::json keys = {}, const Overrides& overrides = {}) {
  keys["model"] = "gpt2";
  return trainer::read_config(keys, "test", overrides);
}

SearchSpace space(const std::string& cluster, const nlohmann::json& keys = nlohmann::json::object(),
                  const SpaceOptions& options = {}) {
  return search_space(config(keys), parse_cluster(cluster), options);
}

std::vector<std::string> names(const SearchSpace& space) {
  std::vector<std::string> names;
  for (const Dimension& dimension : space.dimensions) names.push_back(dimension.name);
  return names;
}

std::vector<Overrides> choices(const SearchSpace& space, const std::string& name) {
  for (const Dimension& dimension : space.dimensions) {
    if (dimension.name == name) return dimension.choices;
  }
  return {};
}

TEST(SearchSpace, OneHostHasGroupsOfItsDivisors) {
  EXPECT_THAT(
      choices(space("8xh100"), "sharding"),
      ElementsAre(IsEmpty(), ElementsAre("sharding_strategy=shard_grad_op"), ElementsAre("sharding_strategy=no_shard"),
                  ElementsAre("sharding_strategy=hybrid_shard", "sharding_factor=2"),
                  ElementsAre("sharding_strategy=hybrid_shard_zero2", "sharding_factor=2"),
                  ElementsAre("sharding_strategy=hybrid_shard", "sharding_factor=4"),
                  ElementsAre("sharding_strategy=hybrid_shard_zero2", "sharding_factor=4")));
  EXPECT_THAT(choices(space("3xh100"), "sharding").size(), 3);
  EXPECT_THAT(names(space("1xh100")), Not(Contains("sharding")));
}

TEST(SearchSpace, SeveralHostsHaveGroupsOfHosts) {
  const std::vector<Overrides> sharding = choices(space("4x8xh100"), "sharding");
  EXPECT_THAT(sharding, Contains(ElementsAre("sharding_strategy=hybrid_shard", "sharding_factor=8")));
  EXPECT_THAT(sharding, Contains(ElementsAre("sharding_strategy=hybrid_shard", "sharding_factor=16")));
  EXPECT_THAT(sharding, Contains(ElementsAre("reshard_after_forward=8")));
  EXPECT_THAT(sharding, Not(Contains(ElementsAre("sharding_strategy=hybrid_shard", "sharding_factor=32"))));
  const std::vector<Overrides> hybrid = choices(space("4x8xh100", {{"sharding_strategy", "hybrid_shard"}}), "sharding");
  EXPECT_EQ(hybrid.front(), Overrides());  // groups of a host
  EXPECT_THAT(hybrid, Not(Contains(ElementsAre("sharding_factor=8"))));
  EXPECT_THAT(hybrid, Contains(ElementsAre("sharding_factor=16")));
  EXPECT_THAT(hybrid, Contains(ElementsAre("sharding_strategy=full_shard")));
}

TEST(SearchSpace, ChoicesAreDifferencesFromTheConfig) {
  const SearchSpace found = space("8xh100", {{"activation_checkpointing", true},
                                             {"activation_checkpointing_every", 2},
                                             {"fused_loss", true},
                                             {"limit_all_gathers", false}});
  EXPECT_THAT(
      choices(found, "recomputation"),
      ElementsAre(
          IsEmpty(), ElementsAre("activation_checkpointing=false", "activation_checkpointing_every=1"),
          ElementsAre("activation_checkpointing_every=1"), ElementsAre("activation_checkpointing_every=3"),
          ElementsAre("activation_checkpointing_every=1", "activation_checkpointing_save_ops=aten::mm,aten::addmm")));
  EXPECT_THAT(choices(found, "loss"), ElementsAre(IsEmpty(), ElementsAre("fused_loss=false")));
  EXPECT_THAT(choices(found, "limit"), Contains(ElementsAre("limit_all_gathers=true", "max_gathered_units=4")));
}

TEST(SearchSpace, FixedKeysKeepTheirValues) {
  const SpaceOptions options{.fixed = {"cpu_offload", "activation_checkpointing", "sharding_strategy"}};
  const SearchSpace found = space("8xh100", {{"sharding_strategy", "hybrid_shard"}, {"sharding_factor", 4}}, options);
  EXPECT_THAT(choices(found, "sharding"), ElementsAre(IsEmpty(), ElementsAre("sharding_factor=2")));
  EXPECT_THAT(names(found), UnorderedElementsAre("sharding", "loss", "units", "limit", "prefetch"));
}

TEST(SearchSpace, OffloadingNeedsADeviceAndNoFiles) {
  EXPECT_THAT(names(space("8xh100")), Contains("offload"));
  EXPECT_THAT(names(space("8xcpu")), Not(Contains("offload")));
  EXPECT_THAT(names(space("8xh100", {{"offload_path", "/scratch"}})), Not(Contains("offload")));
}

TEST(SearchSpace, SamplesOfAStepAreKeptOrFree) {
  const nlohmann::json batch = {{"train_batch_size", 6}, {"gradient_accumulation_steps", 2}};
  const SearchSpace kept = space("8xh100", batch);
  EXPECT_THAT(kept.batches,
              ElementsAre(MicroBatch{2, 6}, MicroBatch{3, 4}, MicroBatch{4, 3}, MicroBatch{6, 2}, MicroBatch{12, 1}));
  EXPECT_EQ(kept.config_batch, 3);
  EXPECT_THAT(kept.overrides(kept.config(), 3), IsEmpty());
  EXPECT_THAT(kept.overrides(kept.config(), 4), ElementsAre("train_batch_size=12", "gradient_accumulation_steps=1"));
  const SearchSpace many = space("8xh100", {{"train_batch_size", 40}});
  EXPECT_EQ(many.batches.front(), (MicroBatch{5, 8}));
  const SearchSpace more = space("8xh100", {{"train_batch_size", 2}, {"gradient_accumulation_steps", 20}});
  EXPECT_EQ(more.batches.front(), (MicroBatch{2, 20}));
  const SearchSpace free = space("8xh100", {{"train_batch_size", 5}}, {.keeps_samples = false});
  EXPECT_EQ(free.batches[free.config_batch], (MicroBatch{5, 1}));
  EXPECT_THAT(std::vector<MicroBatch>(free.batches.begin(), free.batches.begin() + 6),
              ElementsAre(MicroBatch{1, 1}, MicroBatch{2, 1}, MicroBatch{3, 1}, MicroBatch{4, 1}, MicroBatch{5, 1},
                          MicroBatch{6, 1}));
  EXPECT_THAT(free.overrides(free.config(), 0), ElementsAre("train_batch_size=1"));
}

// The config as it is fits none of the choices that are known.
TEST(SearchSpace, OverridesOfAllCombinationsCanBeRead) {
  const nlohmann::json keys = {{"wrap_policy", "auto_units"},      {"auto_units_memory_bound", 1'000'000'000},
                               {"max_gathered_units", 3},          {"backward_prefetch", "none"},
                               {"activation_checkpointing", true}, {"activation_checkpointing_every", 5},
                               {"reshard_after_forward", true}};
  const SearchSpace found = space("4x8xh100", keys);
  std::vector<Combination> all = {found.config()};
  for (size_t i = 0; i < found.dimensions.size(); ++i) {
    const std::vector<Combination> before = all;
    for (size_t choice = 1; choice < found.dimensions[i].choices.size(); ++choice) {
      for (const Combination& combination : before) {
        all.push_back(combination);
        all.back()[i] = choice;
      }
    }
  }
  EXPECT_GT(all.size(), 1000);
  for (size_t i = 0; i < all.size(); i += 17) {
    const Overrides overrides = found.overrides(all[i], 0);
    EXPECT_NO_THROW(config(keys, overrides)) << ::testing::PrintToString(overrides);
  }
}

}  // namespace
}  // namespace fsdp::planner::space_test
