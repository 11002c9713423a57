// Searches with made-up plans: which candidates are asked for, and which are found.
#include "planner/search/plan_search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <stdexcept>

#include "config/config_reader.h"
#include "config/errors.h"
#include "planner/search/search_document.h"
#include "planner/search/state_bound.h"

namespace fsdp::planner::plan_search_test {
namespace {

using nlohmann::ordered_json;
using ::testing::Each;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using trainer::Config;

constexpr int64_t kParameters = 1'000'000'000;
constexpr double kGB = 1e9;

trainer::Config config_with(const Overrides& overrides) {
  return trainer::read_config({{"model", "gpt2"}}, "test", overrides);
}

double recomputed_part(const trainer::ModelConfig& model) {
  if (!model.activation_checkpointing) return 0;
  return (model.activation_checkpointing_save_ops.empty() ? 1.0 : 0.4) /
         static_cast<double>(model.activation_checkpointing_every);
}

double gathered(const Config& config) {
  if (!config.sharding.limit_all_gathers) return 5 * kGB;
  return static_cast<double>(config.sharding.max_gathered_units) * 0.4 * kGB;
}

double made_up_bytes(const Config& config, const Cluster& cluster) {
  const double sample = (4 - 3 * recomputed_part(config.model) - (config.model.fused_loss ? 0.5 : 0)) * kGB;
  const LeastMemory least = least_memory(config, cluster, kParameters);
  return static_cast<double>(least.device) + gathered(config) +
         sample * static_cast<double>(config.data.train_batch_size);
}

// Seconds of a step: forward and backward, and communication that is not hidden.
double made_up_seconds(const Config& config) {
  const std::map<ShardingStrategy, double> communication = {{ShardingStrategy::kFullShard, 3.0},
                                                            {ShardingStrategy::kShardGradOp, 2.0},
                                                            {ShardingStrategy::kNoShard, 2.5},
                                                            {ShardingStrategy::kHybridShard, 2.2},
                                                            {ShardingStrategy::kHybridShardZero2, 1.7}};
  double seconds = communication.at(config.sharding.strategy);
  if (config.sharding.backward_prefetch != BackwardPrefetch::kPre) seconds *= 1.2;
  if (config.sharding.max_gathered_units == 1) seconds *= 1.1;
  if (config.sharding.cpu_offload) seconds += 4;
  const double pass = (1 + recomputed_part(config.model) / 3) * static_cast<double>(config.data.train_batch_size);
  return (seconds + pass) * static_cast<double>(config.steps.gradient_accumulation_steps);
}

class MadeUpSearch {
 public:
  explicit MadeUpSearch(const std::string& cluster, const SpaceOptions& options = {.keeps_samples = false}) {
    input.cluster = parse_cluster(cluster);
    input.space = search_space(config_with({}), input.cluster, options);
    input.most_plans = 100'000;
    input.config = config_with;
    input.plan_all = [this](const std::vector<Config>& configs) { return plan_all(configs); };
  }

  SearchFronts run() {
    candidates.emplace(input);
    search_plans(input, *candidates);
    return search_fronts(input, *candidates);
  }

  const PlannedCandidate& best(const SearchFronts& fronts) const { return candidates->planned()[fronts.fitting.at(0)]; }
  ordered_json document(const SearchFronts& fronts) const { return search_document(input, *candidates, fronts, {}); }

  ordered_json plan_of(const Config& config) const {
    const auto bytes = static_cast<int64_t>(made_up_bytes(config, input.cluster));
    const int64_t capacity = input.cluster.device->memory;
    const char* verdict = to_string(verdict_for(bytes, capacity));
    const int64_t host = config.sharding.cpu_offload ? 40'000'000'000 : 2'000'000'000;
    ordered_json plan = {{"model", {{"parameters", kParameters}, {"type", "gpt2"}, {"units", 14}}},
                         {"cluster", {{"text", input.cluster.text()}}},
                         {"stack", "ours"},
                         {"rank", 0},
                         {"steps", 3},
                         {"memory",
                          {{"verdict", verdict},
                           {"device", {{"verdict", verdict}, {"capacity", capacity}, {"total", bytes}}},
                           {"host", {{"per_host", host}}}}}};
    if (has_time) {
      const double seconds = made_up_seconds(config);
      const auto samples = static_cast<double>(config.data.train_batch_size * config.steps.gradient_accumulation_steps);
      plan["time"] = {{"step_seconds", seconds}, {"tokens_per_second", samples * 1024 / seconds}};
    }
    return plan;
  }

  SearchInput input;
  std::optional<Candidates> candidates;
  bool has_time = true;
  std::function<Answer(const Config&)> answer = [this](const Config& config) {
    return Answer{.result = plan_of(config)};
  };
  std::vector<Config> asked;

 private:
  std::vector<Answer> plan_all(const std::vector<Config>& configs) {
    EXPECT_FALSE(configs.empty());
    std::vector<Answer> answers;
    for (const Config& config : configs) {
      EXPECT_EQ(std::count(asked.begin(), asked.end(), config), 0);
      asked.push_back(config);
      answers.push_back(answer(config));
    }
    return answers;
  }
};

void for_all_candidates(const SearchSpace& space, const std::function<void(const Combination&, size_t)>& visit) {
  Combination combination = space.config();
  while (true) {
    for (size_t batch = 0; batch < space.batches.size(); ++batch) visit(combination, batch);
    size_t i = 0;
    while (i < combination.size() && ++combination[i] == space.dimensions[i].choices.size()) combination[i++] = 0;
    if (i == combination.size()) return;
  }
}

TEST(PlanSearch, FindsTheBestOfAllCandidates) {
  MadeUpSearch search("8xa100-40", {.fixed = {"wrap_policy", "fused_loss"}, .keeps_samples = false});
  const SearchFronts fronts = search.run();
  double most = 0, least = 1e18;
  for_all_candidates(search.input.space, [&](const Combination& combination, size_t batch) {
    const Config config = config_with(search.input.space.overrides(combination, batch));
    const ordered_json plan = search.plan_of(config);
    if (plan["memory"]["verdict"] != "fits") return;
    most = std::max(most, plan["time"]["tokens_per_second"].get<double>());
    least = std::min(least, plan["memory"]["device"]["total"].get<double>());
  });
  EXPECT_GT(search.best(fronts).speed, most / 1.001);
  const PlannedCandidate& last = search.candidates->planned()[fronts.fitting.back()];
  EXPECT_LE(static_cast<double>(*last.device), least + 0.01 * 40e9);
  EXPECT_LT(search.asked.size(), 600);
}

TEST(PlanSearch, RowsAreThePlansOfTheirOverrides) {
  MadeUpSearch search("8xa100-40");
  const SearchFronts fronts = search.run();
  const ordered_json document = search.document(fronts);
  ASSERT_GT(document["search"]["front"].size(), 2);
  for (const char* list : {"front", "tight"}) {
    for (const ordered_json& row : document["search"][list]) {
      const ordered_json plan = search.plan_of(config_with(row["set"].get<Overrides>()));
      EXPECT_EQ(row["device"], plan["memory"]["device"]["total"]);
      EXPECT_EQ(row["host"], plan["memory"]["host"]["per_host"]);
      EXPECT_EQ(row["tokens_per_second"], plan["time"]["tokens_per_second"]);
      EXPECT_EQ(row["verdict"], plan["memory"]["verdict"]);
      EXPECT_EQ(row["verdict"], list == std::string("front") ? "fits" : "tight");
    }
  }
}

TEST(PlanSearch, TheSamplesOfAStepStay) {
  MadeUpSearch search("8xa100-40", {.keeps_samples = true});
  const SearchFronts fronts = search.run();
  for (const Config& config : search.asked) {
    EXPECT_EQ(config.data.train_batch_size * config.steps.gradient_accumulation_steps, 4);
  }
  EXPECT_EQ(search.document(fronts)["search"]["samples_per_step"], 32);
}

TEST(PlanSearch, NothingIsPlannedWhoseShardsDoNotFit) {
  MadeUpSearch search("4xrtx4090");  // 16 GB of shards in full, 8 of a pair
  search.run();
  EXPECT_EQ(search.candidates->count(CombinationState::kSkipped), 0);
  MadeUpSearch offloaded("4xrtx4090", {.fixed = {"fused_loss"}, .keeps_samples = false});
  offloaded.input.host_memory = 30'000'000'000;  // one copy of the shards, but not four
  offloaded.run();
  EXPECT_GT(offloaded.candidates->count(CombinationState::kSkipped), 0);
  for (const Config& config : offloaded.asked) {
    EXPECT_LE(least_memory(config, offloaded.input.cluster, kParameters).host, 30'000'000'000);
  }
}

TEST(PlanSearch, RefusedChoicesAreAskedForOnce) {
  MadeUpSearch search("8xa100-40");
  search.answer = [&](const Config& config) {
    if (config.model.fused_loss) return Answer{.refusal = "an image classifier has no fused_loss"};
    return Answer{.result = search.plan_of(config)};
  };
  search.run();
  EXPECT_EQ(std::count_if(search.asked.begin(), search.asked.end(), [](const Config& c) { return c.model.fused_loss; }),
            1);
  EXPECT_EQ(search.candidates->count(CombinationState::kRefused), 1);
}

TEST(PlanSearch, FailedPlansAreCountedAndLeftOut) {
  MadeUpSearch search("8xa100-40");
  search.answer = [&](const Config& config) {
    if (config.sharding.cpu_offload) return Answer{.failure = "no shape function for aten::x"};
    return Answer{.result = search.plan_of(config)};
  };
  const SearchFronts fronts = search.run();
  const ordered_json document = search.document(fronts);
  EXPECT_GT(document["search"]["counts"]["failed"], 0);
  EXPECT_THAT(search_text(document), HasSubstr("the first failure: no shape function for aten::x"));
  EXPECT_FALSE(fronts.fitting.empty());
}

TEST(PlanSearch, ErrorsOfTheConfigItselfEndTheSearch) {
  MadeUpSearch search("8xa100-40");
  search.answer = [](const Config&) { return Answer{.refusal = "cannot be planned"}; };
  EXPECT_THROW(search.run(), trainer::ConfigError);
  EXPECT_EQ(search.asked.size(), 1);
  MadeUpSearch failing("8xa100-40");
  failing.answer = [](const Config&) { return Answer{.failure = "signal 9"}; };
  EXPECT_THROW(failing.run(), std::runtime_error);
}

TEST(PlanSearch, TheLimitCutsIt) {
  MadeUpSearch whole("8xa100-40");
  whole.run();
  EXPECT_FALSE(whole.candidates->is_cut());
  for (const size_t limit : {size_t{1}, size_t{2}, size_t{30}, size_t{100}}) {
    MadeUpSearch search("8xa100-40");
    search.input.most_plans = limit;
    const SearchFronts fronts = search.run();
    EXPECT_EQ(search.asked.size(), limit);
    EXPECT_TRUE(search.candidates->is_cut());
    EXPECT_THAT(search_text(search.document(fronts)), HasSubstr("--search-limit"));
    EXPECT_TRUE(std::equal(search.asked.begin(), search.asked.end(), whole.asked.begin()));
  }
}

TEST(PlanSearch, IfNothingFitsTheNearestIsShown) {
  MadeUpSearch search("8xa100-40");
  search.input.cluster.device->memory = 1'000'000'000;
  const SearchFronts fronts = search.run();
  EXPECT_THAT(fronts.fitting, IsEmpty());
  EXPECT_THAT(fronts.tight, IsEmpty());
  const ordered_json nearest = search.document(fronts)["search"]["nearest"];
  std::vector<int64_t> totals;
  for (const PlannedCandidate& planned : search.candidates->planned()) totals.push_back(*planned.device);
  EXPECT_THAT(totals, Each(Ge(nearest["device"].get<int64_t>())));
}

TEST(PlanSearch, WithoutTimesTheLargerBatchIsFirst) {
  MadeUpSearch search("8xa100-40");
  search.has_time = false;
  const SearchFronts fronts = search.run();
  const ordered_json document = search.document(fronts);
  EXPECT_EQ(document["search"]["compared"], "train_batch_size");
  EXPECT_THAT(search_text(document), HasSubstr("have no times"));
  for (size_t i = 1; i < fronts.fitting.size(); ++i) {
    EXPECT_GE(search.candidates->planned()[fronts.fitting[i - 1]].speed,
              search.candidates->planned()[fronts.fitting[i]].speed);
  }
  const Config best = config_with(search.best(fronts).overrides);
  EXPECT_TRUE(best.model.activation_checkpointing);
}

}  // namespace
}  // namespace fsdp::planner::plan_search_test
