// A plan does what real ranks do: the same collectives in the same order, and the same bytes of the engine.
#include "planner/run/planned_run.h"

#include <gmock/gmock.h>

#include "comm/testing/recording_communicator.h"
#include "planner/testing/small_models.h"
#include "support/files/project_paths.h"
#include "support/files/temporary_folder.h"
#include "testing/program.h"

namespace fsdp::planner::planned_run_test {
namespace {

using nlohmann::json;

constexpr int kSteps = 3;

// Runs the configs in a process that computes. Returns what each run saw.
json real_runs(const json& runs) {
  const testing::TemporaryFolder folder;
  const auto result =
      trainer::run_shell(testing::build_folder() + "/planner_real_ranks " + folder.write("runs.json", runs.dump()));
  EXPECT_EQ(result.status, 0) << result.err;
  return json::parse(result.out);
}

// Returns the texts of a group's collectives, which are counted in the group.
json collectives_of(const Tape& tape, int group) {
  json lines = json::array();
  std::map<int64_t, int64_t> numbers;
  for (const TapeEntry& entry : tape.entries()) {
    const bool issued = entry.kind == TapeKind::kCollective;
    if (!issued && entry.kind != TapeKind::kWait) continue;
    const TapeCollective& collective = tape.collectives()[static_cast<size_t>(entry.id)];
    if (collective.group != group) continue;
    const int64_t number = numbers.emplace(entry.id, static_cast<int64_t>(numbers.size())).first->second;
    const comm::CollectiveEvent event{
        .what = issued ? comm::CollectiveEvent::What::kIssue : comm::CollectiveEvent::What::kWait,
        .index = number,
        .kind = collective.kind,
        .id = collective.id,
        .numel = collective.numel,
        .dtype = collective.dtype};
    lines.push_back(comm::to_string(event) + (collective.twin ? " (twin)" : ""));
  }
  return lines;
}

json planned_run(const json& config, int ranks) {
  PlannedRun run(read_json(config), {.has_device = false, .layout = {ranks, ranks}});
  json result;
  for (int step = 0; step < kSteps; ++step) {
    run.step();
    json memory;
    for (const MemoryCategory& category : run.memory().back().categories) {
      memory[category.name] = {category.current, category.peak, category.reserved};
    }
    result["memory"].push_back(memory);
  }
  const std::vector<std::string> names = {"world", "shard", "replicate"};
  for (size_t group = 0; group < run.tape().groups().size(); ++group) {
    result["collectives"][names.at(group)] = collectives_of(run.tape(), static_cast<int>(group));
  }
  return result;
}

const std::vector<json>& strategies() {
  static const std::vector<json> all = {
      {{"sharding_strategy", "full_shard"}},
      {{"sharding_strategy", "shard_grad_op"}},
      {{"sharding_strategy", "no_shard"}},
      {{"sharding_strategy", "hybrid_shard"}, {"sharding_factor", 2}},
      {{"sharding_strategy", "hybrid_shard_zero2"}, {"sharding_factor", 2}},
  };
  return all;
}

const std::map<std::string, json>& variants() {
  static const std::map<std::string, json> all = {
      {"default", json::object()},
      {"keep_memory", {{"keep_memory", true}}},
      {"no_prefetch", {{"backward_prefetch", "none"}, {"forward_prefetch", false}}},
      {"recomputation", {{"activation_checkpointing", true}}},
  };
  return all;
}

void expect_equal_to_real_ranks(const json& runs) {
  const json real = real_runs(runs);
  for (size_t i = 0; i < runs.size(); ++i) {
    SCOPED_TRACE(runs[i].dump());
    const json planned = planned_run(runs[i]["config"], runs[i]["ranks"]);
    ASSERT_FALSE(real[i]["collectives"].empty());
    for (const auto& [group, lines] : real[i]["collectives"].items()) {
      EXPECT_THAT(planned["collectives"][group], ::testing::ElementsAreArray(lines)) << group;
    }
    EXPECT_EQ(planned["memory"], real[i]["memory"]);
  }
}

class Plan : public ::testing::TestWithParam<std::tuple<std::string, std::string>> {};

TEST_P(Plan, EqualsRealRanks) {
  const auto& [model, variant] = GetParam();
  json runs;
  for (const json& strategy : strategies()) {
    json more = variants().at(variant);
    more.update(strategy);
    for (const int ranks : {2, 4}) {
      runs.push_back({{"config", small_config(model, more)}, {"ranks", ranks}, {"steps", kSteps}});
    }
  }
  expect_equal_to_real_ranks(runs);
}

INSTANTIATE_TEST_SUITE_P(, Plan,
                         ::testing::Combine(::testing::ValuesIn(small_model_names()),
                                            ::testing::Values("default", "keep_memory", "no_prefetch",
                                                              "recomputation")),
                         [](const auto& info) { return std::get<0>(info.param) + "_" + std::get<1>(info.param); });

// Options that are tried with some strategies.
const std::map<std::string, std::vector<json>>& options() {
  const json whole = {{"sharding_strategy", "full_shard"}};
  const json gathered = {{"sharding_strategy", "shard_grad_op"}};
  const json hybrid = {{"sharding_strategy", "hybrid_shard"}, {"sharding_factor", 2}};
  const auto with = [](json more, const std::vector<json>& strategies) {
    std::vector<json> all;
    for (const json& strategy : strategies) {
      all.push_back(more);
      all.back().update(strategy);
    }
    return all;
  };
  static const std::map<std::string, std::vector<json>> all = {
      {"cpu_offload", with({{"cpu_offload", true}}, {whole, hybrid})},
      {"hybrid_by_hosts", {{{"sharding_strategy", "hybrid_shard"}}, {{"sharding_strategy", "hybrid_shard_zero2"}}}},
      {"auto_units", with({{"wrap_policy", "auto_units"}}, {whole, gathered})},
      {"accumulation", with({{"gradient_accumulation_steps", 2}}, {whole, gathered, hybrid})},
      {"accumulation_without_synchronization",
       with({{"gradient_accumulation_steps", 2}, {"sync_each_batch", false}}, {whole, gathered, hybrid})},
      {"accumulation_of_replicas",
       with({{"gradient_accumulation_steps", 2}, {"all_reduce_each_batch", false}}, {hybrid})},
      {"recomputation_of_every_second_block",
       with({{"activation_checkpointing", true}, {"activation_checkpointing_every", 2}}, {whole, gathered})},
      {"recomputation_but_of_products",
       with({{"activation_checkpointing", true}, {"activation_checkpointing_save_ops", {"aten::mm", "aten::addmm"}}},
            {whole, hybrid})},
      {"keep_memory_without_prefetch",
       with({{"keep_memory", true}, {"backward_prefetch", "none"}, {"forward_prefetch", false}}, {whole, hybrid})},
      {"fp32", with({{"dtype", "fp32"}}, {whole, gathered})},
      {"low_precision_gradients", with({{"keep_low_precision_grads", true}}, {whole})},
  };
  return all;
}

std::vector<std::string> names_of_options() {
  std::vector<std::string> names;
  for (const auto& [name, configs] : options()) names.push_back(name);
  return names;
}

class PlanWith : public ::testing::TestWithParam<std::string> {};

TEST_P(PlanWith, EqualsRealRanks) {
  json runs;
  for (const json& more : options().at(GetParam())) {
    for (const std::string model : {"llama", "regnet"}) {
      runs.push_back({{"config", small_config(model, more)}, {"ranks", 4}, {"steps", kSteps}});
    }
  }
  expect_equal_to_real_ranks(runs);
}

INSTANTIATE_TEST_SUITE_P(, PlanWith, ::testing::ValuesIn(names_of_options()),
                         [](const auto& info) { return info.param; });

// Shards and gradients lie in memory that ranks share.
TEST(PlanOverSharedMemory, EqualsRealRanks) {
  json runs;
  for (json more : strategies()) {
    more["comm_backend"] = "auto";
    for (const std::string dtype : {"fp32", "bf16"}) {
      more["dtype"] = dtype;
      runs.push_back({{"config", small_config("llama", more)}, {"ranks", 4}, {"steps", kSteps}});
    }
  }
  expect_equal_to_real_ranks(runs);
}

class PlanOnADevice : public ::testing::TestWithParam<std::string> {};

TEST_P(PlanOnADevice, TrainsForThreeSteps) {
  PlannedRun run(read_json(small_config(GetParam(), {{"dtype", "bf16"}})), {.has_device = true, .layout = {4, 2}});
  for (int step = 0; step < kSteps; ++step) run.step();
  EXPECT_EQ(run.step_bounds().size(), kSteps + 1);
}

INSTANTIATE_TEST_SUITE_P(, PlanOnADevice, ::testing::ValuesIn(small_model_names()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace fsdp::planner::planned_run_test
