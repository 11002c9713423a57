// A plan does what real ranks do: the same collectives in the same order, and the same bytes of the engine.
#include "planner/run/planned_run.h"

#include <gmock/gmock.h>

#include <map>

#include "comm/testing/recording_communicator.h"
#include "models/testing/small_models.h"
#include "planner/run/pipeline_plan.h"
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

json figures_of(const json& about, int rank, PlannedPeers* peers) {
  const int ranks = about["ranks"];
  PlannedRun run(read_json(about["config"]), {.has_device = false,
                                              .layout = {.world = ranks, .per_host = ranks, .peers = peers},
                                              .rank = rank,
                                              .document_tokens = about.value("document_tokens", int64_t{0})});
  json figures;
  for (int step = 0; step < kSteps; ++step) {
    run.step();
    json memory;
    for (const MemoryCategory& category : run.memory().back().categories) {
      memory[category.name] = {category.current, category.peak, category.reserved};
    }
    figures["memory"].push_back(memory);
  }
  for (size_t group = 0; group < run.tape().groups().size(); ++group) {
    figures["groups"].push_back(
        {{"ranks", run.tape().groups()[group]}, {"collectives", collectives_of(run.tape(), static_cast<int>(group))}});
  }
  return figures;
}

json planned_run(const json& about) {
  const json& config = about["config"];
  const int ranks = about["ranks"], rank = about["rank"], stages = config.value("pipeline_parallel_degree", 1);
  if (stages == 1) return figures_of(about, rank, nullptr);
  return plan_pipeline({.stages = stages, .of_stage = ranks / stages, .chosen = rank},
                       [&](int of_stage, PlannedPeers& peers) -> nlohmann::ordered_json {
                         return {{"figures", figures_of(about, of_stage, &peers)},
                                 {"stage", {{"bytes", 0}, {"verdict", "fits"}}}};
                       })
      .at("figures");
}

json run_of(const json& config, int ranks, int rank = 0) {
  return {{"config", config}, {"ranks", ranks}, {"rank", rank}, {"steps", kSteps}};
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

// Tied parameters are compared by their sums, whose values a plan does not know: their texts have other lengths.
std::string without_length_of_values(const std::string& line) {
  return line.find("'tied parameters'") == std::string::npos ? line : line.substr(0, line.rfind(", "));
}

void expect_same_lines(const json& planned, const json& real) {
  EXPECT_EQ(planned.size(), real.size());
  for (size_t i = 0; i < std::min(planned.size(), real.size()); ++i) {
    ASSERT_EQ(without_length_of_values(planned[i]), without_length_of_values(real[i])) << "line " << i;
  }
}

void expect_equal_to_real_ranks(const json& runs) {
  const json real = real_runs(runs);
  for (size_t i = 0; i < runs.size(); ++i) {
    SCOPED_TRACE(runs[i].dump());
    const json planned = planned_run(runs[i]);
    ASSERT_EQ(planned["groups"].size(), real[i]["groups"].size());
    size_t collectives = 0;
    for (size_t group = 0; group < planned["groups"].size(); ++group) {
      const json &as_planned = planned["groups"][group], &as_real = real[i]["groups"][group];
      SCOPED_TRACE(as_real["ranks"].dump());
      EXPECT_EQ(as_planned["ranks"], as_real["ranks"]);
      expect_same_lines(as_planned["collectives"], as_real["collectives"]);
      collectives += as_real["collectives"].size();
    }
    EXPECT_GT(collectives, 0);
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
      runs.push_back(run_of(small_config(model, more), ranks));
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
      runs.push_back(run_of(small_config(model, more), 4));
    }
  }
  expect_equal_to_real_ranks(runs);
}

INSTANTIATE_TEST_SUITE_P(, PlanWith, ::testing::ValuesIn(names_of_options()),
                         [](const auto& info) { return info.param; });

// Of models whose weights are split, with sequence parallelism and without.
class PlanOfASplitModel : public ::testing::TestWithParam<std::string> {};

TEST_P(PlanOfASplitModel, EqualsRealRanks) {
  json runs;
  for (const bool parts : {true, false}) {
    for (const json& more : std::vector<json>{{{"sharding_strategy", "full_shard"}},
                                              {{"sharding_strategy", "shard_grad_op"}, {"dtype", "fp32"}},
                                              {{"activation_checkpointing", true}, {"clip_grad_norm", 0}}}) {
      json keys = {{"tensor_parallel_degree", 2}, {"enable_sequence_parallel", parts}};
      keys.update(more);
      for (const int ranks : {2, 4}) {
        runs.push_back(run_of(small_config(GetParam(), keys), ranks));
      }
    }
  }
  expect_equal_to_real_ranks(runs);
}

TEST_P(PlanOfASplitModel, TrainsOnADevice) {
  PlannedRun run(read_json(small_config(GetParam(), {{"dtype", "bf16"}, {"tensor_parallel_degree", 2}})),
                 {.has_device = true, .layout = {4, 2}, .rank = 3});
  run.step();
  EXPECT_EQ(run.data_ranks(), 2);
  EXPECT_EQ(run.step_bounds().size(), 2);
}

INSTANTIATE_TEST_SUITE_P(, PlanOfASplitModel, ::testing::Values("llama", "phi3"),
                         [](const auto& info) { return info.param; });

// Of pipelines: each rank of one, with all schedules, strategies and meshes. Ranks are forks, so the suite's name makes
// it run before others start threads.
class PlanOfAPipelineDeathTest : public ::testing::TestWithParam<std::string> {};

TEST_P(PlanOfAPipelineDeathTest, EqualsRealRanks) {
  json keys = {
      {"pipeline_parallel_schedule", GetParam()}, {"pipeline_parallel_degree", 2}, {"gradient_accumulation_steps", 4}};
  json runs;
  for (const int rank : {0, 1}) {
    runs.push_back(run_of(small_config("llama", keys), 2, rank));
    runs.push_back(run_of(small_config("gpt2", keys), 2, rank));  // its embedding is also its head
  }
  for (const json& more : std::vector<json>{{{"sharding_strategy", "shard_grad_op"}, {"dtype", "bf16"}},
                                            {{"sharding_strategy", "full_shard"}, {"activation_checkpointing", true}},
                                            {{"sync_each_batch", false}, {"dtype", "fp32"}, {"clip_grad_norm", 0}},
                                            {{"tensor_parallel_degree", 2}}}) {
    json with = keys;
    with.update(more);
    runs.push_back(run_of(small_config("llama", with), 4, static_cast<int>(1 + runs.size() % 2)));  // one of each stage
  }
  expect_equal_to_real_ranks(runs);
}

TEST_P(PlanOfAPipelineDeathTest, TrainsOnADevice) {
  const json config = small_config("llama", {{"pipeline_parallel_schedule", GetParam()},
                                             {"pipeline_parallel_degree", 2},
                                             {"gradient_accumulation_steps", 4},
                                             {"dtype", "bf16"}});
  const auto document = plan_pipeline({.stages = 2, .of_stage = 2, .chosen = 3}, [&](int rank, PlannedPeers& peers) {
    PlannedRun run(read_json(config), {.layout = {.world = 4, .per_host = 2, .peers = &peers}, .rank = rank});
    for (int step = 0; step < kSteps; ++step) run.step();
    return nlohmann::ordered_json{
        {"rank", rank}, {"data_ranks", run.data_ranks()}, {"stage", {{"bytes", rank}, {"verdict", "fits"}}}};
  });
  EXPECT_EQ(document.at("rank"), 3);
  EXPECT_EQ(document.at("data_ranks"), 2);
  EXPECT_EQ(document.at("pipeline").size(), 2);
}

INSTANTIATE_TEST_SUITE_P(, PlanOfAPipelineDeathTest,
                         ::testing::Values("GPipe", "1F1B", "Interleaved1F1B", "InterleavedZeroBubble",
                                           "ZBVZeroBubble"),
                         [](const auto& info) { return "With" + info.param; });

// Documents of five tokens in samples of eight.
TEST(PlanOfDocuments, EqualsRealRanks) {
  json runs;
  for (const json& more : std::vector<json>{{{"sharding_strategy", "full_shard"}},
                                            {{"activation_checkpointing", true}, {"dtype", "fp32"}}}) {
    json keys = {{"attn_mask_type", "block_causal"}};
    keys.update(more);
    json run = run_of(small_config("llama", keys), 2);
    run["config"]["model"]["eos_token_id"] = 1;
    run["document_tokens"] = 5;
    runs.push_back(run);
  }
  expect_equal_to_real_ranks(runs);
}

// Shards and gradients lie in memory that ranks share.
TEST(PlanOverSharedMemory, EqualsRealRanks) {
  json runs;
  for (json more : strategies()) {
    more["comm_backend"] = "auto";
    for (const std::string dtype : {"fp32", "bf16"}) {
      more["dtype"] = dtype;
      runs.push_back(run_of(small_config("llama", more), 4));
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

class PlanOfADecoder : public ::testing::TestWithParam<json> {};

TEST_P(PlanOfADecoder, TrainsOnADeviceAndOnTheHost) {
  for (const bool has_device : {true, false}) {
    PlannedRun run(read_json(small_config("llama", {{"model", GetParam()}, {"dtype", "bf16"}})),
                   {.has_device = has_device, .layout = {4, 2}});
    run.step();
    EXPECT_EQ(run.step_bounds().size(), 2);
  }
}

INSTANTIATE_TEST_SUITE_P(, PlanOfADecoder, ::testing::ValuesIn(models::small_decoders()),
                         [](const auto& info) { return info.param.at("model_type").template get<std::string>(); });

// Results that a device keeps from forward, and computes in backward.
struct KeptAttention {
  std::vector<int64_t> kept;  // bytes of each result that lives when backward begins
  int forward = 0;            // calls
  int again = 0;              // calls in backward
  std::vector<ProductWork> work;
};

KeptAttention kept_attention(const std::string& model, const json& more) {
  PlannedRun run(read_json(small_config(model, more)), {.has_device = true, .layout = {2, 2}});
  run.step();
  const Tape& tape = run.tape();
  KeptAttention found;
  std::map<int64_t, int64_t> living;
  bool in_backward = false;
  for (size_t i = run.step_bounds()[0]; i < run.step_bounds()[1]; ++i) {
    const TapeEntry& entry = tape.entries()[i];
    if (entry.backward && !in_backward) {
      in_backward = true;
      for (const auto& [id, bytes] : living) found.kept.push_back(bytes);
    }
    if (entry.kind == TapeKind::kFree) living.erase(entry.id);
    const bool named = entry.name >= 0 && tape.name(entry).rfind("aten::_scaled_dot_product_", 0) == 0 &&
                       tape.name(entry).find("backward") == std::string::npos;
    if (!named || entry.place != Place::kDevice) continue;
    if (entry.kind == TapeKind::kAllocation) living[entry.id] = entry.bytes;
    if (entry.kind != TapeKind::kKernel) continue;
    ++(entry.backward ? found.again : found.forward);
    found.work.push_back(tape.products()[static_cast<size_t>(entry.id)]);
  }
  return found;
}

// The results of CUDA's attention: what it returns in bf16, and the logarithms of its sums in fp32.
TEST(KeptOnADevice, ListsOfKeptOperatorsNameAttentionAsOnCuda) {
  const json recomputed = {{"dtype", "bf16"}, {"activation_checkpointing", true}};
  EXPECT_EQ(kept_attention("llama", recomputed).again, 3);
  for (const char* name : {"aten::_scaled_dot_product_flash_attention", "aten::_scaled_dot_product_cudnn_attention"}) {
    json more = recomputed;
    more["activation_checkpointing_save_ops"] = {name};
    const KeptAttention found = kept_attention("llama", more);
    EXPECT_EQ(found.forward, 3);
    EXPECT_EQ(found.again, 0) << name;
    std::vector<int64_t> expected;
    for (const ProductWork& one : found.work) {
      expected.push_back(2 * one.batch * one.m * one.k);
      expected.push_back(4 * one.batch * one.m);
    }
    EXPECT_THAT(found.kept, ::testing::UnorderedElementsAreArray(expected)) << name;
  }
}

TEST(KeptOnADevice, AttentionOfCpusIsNotKeptOnCuda) {
  EXPECT_EQ(kept_attention("llama", {{"dtype", "bf16"},
                                     {"activation_checkpointing", true},
                                     {"activation_checkpointing_save_ops",
                                      {"aten::mm", "aten::_scaled_dot_product_flash_attention_for_cpu"}}})
                .again,
            3);
}

// In fp32, CUDA runs memory-efficient attention.
TEST(KeptOnADevice, EfficientAttentionIsKeptByItsName) {
  json more = {{"dtype", "fp32"}, {"activation_checkpointing", true}};
  EXPECT_EQ(kept_attention("t5", more).again, 6);
  more["activation_checkpointing_save_ops"] = {"aten::_scaled_dot_product_efficient_attention"};
  const KeptAttention found = kept_attention("t5", more);
  EXPECT_EQ(found.forward, 6);
  EXPECT_EQ(found.again, 0);
}

}  // namespace
}  // namespace fsdp::planner::planned_run_test
