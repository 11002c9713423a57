#include "support/training/one_process.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "engine/engine.h"
#include "support/ranks/thread_ranks.h"

namespace fsdp::testing {
namespace {

using enum ShardingStrategy;

void expect_near(const torch::Tensor& got, const torch::Tensor& want, bool to_the_bit, const std::string& what) {
  bool equal = to_the_bit ? same_bits(got, want) : torch::allclose(got, want, 1e-12, 1e-12);
  EXPECT_TRUE(equal) << what << ":\n" << got << "\nbut in one process:\n" << want;
}

void expect_same_gradients(const std::vector<LeafGradient>& got, const std::vector<LeafGradient>& want) {
  std::set<std::string> defined;
  for (const LeafGradient& parameter : want) {
    if (parameter.defined) defined.insert(parameter.parameters.begin(), parameter.parameters.end());
  }
  for (const LeafGradient& leaf : got) {
    bool any = std::any_of(leaf.parameters.begin(), leaf.parameters.end(),
                           [&](const std::string& name) { return defined.count(name) > 0; });
    EXPECT_EQ(leaf.defined, any) << c10::Join(", ", leaf.parameters);
  }
}

}  // namespace

std::string name_of(const ShardingCase& sharding) {
  return c10::str(to_string(sharding.strategy), "_", sharding.world_size, "ranks_",
                  sharding.use_orig_params ? "orig" : "flat", sharding.strict ? "_strict" : "",
                  sharding.automatic ? "_automatic" : "", sharding.cut == ShardCut::kRows ? "_rows" : "");
}

std::vector<ShardingCase> sharding_cases() {
  std::vector<ShardingCase> cases;
  for (ShardingStrategy strategy : {kFullShard, kShardGradOp, kNoShard}) {
    for (int world_size : {1, 2}) {
      cases.push_back({world_size, strategy, true, world_size == 2});
      cases.push_back({world_size, strategy, false, world_size == 1});
    }
    cases.push_back({3, strategy, true, false});
    cases.push_back({4, strategy, false, true});
  }
  cases.push_back({2, kHybridShard, false, true});
  cases.push_back({4, kHybridShard, true, false});
  cases.push_back({8, kFullShard, true, false});
  cases.push_back({8, kHybridShard, false, true});
  cases.push_back({1, kFullShard, true, true, /*automatic=*/true});
  cases.push_back({2, kShardGradOp, true, true, /*automatic=*/true});
  cases.push_back({3, kFullShard, true, true, /*automatic=*/true});
  cases.push_back({4, kHybridShardZero2, true, false, /*automatic=*/true});
  cases.push_back({4, kNoShard, true, true, /*automatic=*/true});
  cases.push_back({8, kFullShard, true, false, /*automatic=*/true});
  cases.push_back({2, kFullShard, true, true, /*automatic=*/false, ShardCut::kRows});
  cases.push_back({3, kFullShard, false, true, /*automatic=*/false, ShardCut::kRows});
  cases.push_back({3, kShardGradOp, true, false, /*automatic=*/true, ShardCut::kRows});
  cases.push_back({4, kHybridShard, true, true, /*automatic=*/false, ShardCut::kRows});
  cases.push_back({8, kFullShard, true, false, /*automatic=*/false, ShardCut::kRows});
  return cases;
}

Options options_of(const ShardingCase& sharding, const std::shared_ptr<Communicator>& world) {
  Options options;
  options.communicator = world;
  options.sharding_strategy = sharding.strategy;
  options.use_orig_params = sharding.use_orig_params;
  options.shard_cut = sharding.cut;
  if (sharding.automatic) {
    options.auto_units.emplace().target_bytes = 300;
  } else {
    options.auto_wrap_policy = every_module();
  }
  if (is_hybrid(sharding.strategy)) options.mesh = make_mesh(world, sharding.world_size / 2);
  return options;
}

std::shared_ptr<ShardedModule> shard(torch::nn::Module& module, const ShardingCase& sharding, const Options& options) {
  auto sharded = fully_shard(module, options);
  sharded->engine().gatherer().set_strict(sharding.strict);
  return sharded;
}

torch::Tensor RankStep::x(int number) const {
  return torch::sin(torch::arange(12, at::kDouble) * 0.7 + rank + 3 * step + 5 * number).view({3, 4}).to(test_device());
}

void RankStep::backward(const torch::Tensor& loss, bool retain_graph) const {
  (loss * share).backward({}, retain_graph);
}

std::vector<LeafGradient> leaf_gradients(const torch::nn::Module& module) {
  std::vector<LeafGradient> result;
  for (const auto& entry : module.named_parameters()) result.push_back({{entry.key()}, entry.value().grad().defined()});
  return result;
}

std::vector<LeafGradient> leaf_gradients(const ShardedModule& sharded) {
  std::vector<LeafGradient> result;
  for (const auto& unit : sharded.engine().units()) {
    for (const auto& flat : unit->flat_parameters()) {
      LeafGradient whole{{}, flat->flat_leaf().grad().defined()};
      for (size_t i = 0; i < flat->parameters().size(); ++i) {
        const torch::Tensor& leaf = flat->original_leaves()[i];
        whole.parameters.push_back(flat->parameters()[i].fqn);
        if (sharded.engine().options().use_orig_params && leaf.numel() > 0) {
          result.push_back({{whole.parameters.back()}, leaf.grad().defined()});
        }
      }
      if (!sharded.engine().options().use_orig_params) result.push_back(whole);
    }
  }
  return result;
}

void expect_same_outcome(const Outcome& got, const Outcome& want, const ShardingCase& sharding, int rank) {
  const bool to_the_bit = sharding.world_size == 1;
  ASSERT_EQ(got.weights.size(), want.weights.size());
  for (const auto& [name, weight] : want.weights) {
    ASSERT_TRUE(got.weights.count(name)) << name;
    expect_near(got.weights.at(name), weight, to_the_bit, name);
  }
  for (int step = 0; step < kSteps; ++step) {
    SCOPED_TRACE(c10::str("rank ", rank, ", step ", step));
    expect_same_gradients(got.gradients.at(step), want.gradients.at(step));
    const auto& values = want.seen.at(step * sharding.world_size + rank);
    ASSERT_EQ(got.seen.at(step).size(), values.size());
    for (size_t i = 0; i < values.size(); ++i) {
      expect_near(got.seen[step][i], values[i], to_the_bit, c10::str("value ", i));
    }
  }
}

void run_on_ranks(int world_size, const std::function<void(const std::shared_ptr<Communicator>&)>& body) {
  run_ranks(world_size, body, {std::chrono::seconds(20)});
}

}  // namespace fsdp::testing
