// State dicts of models: full, sharded and local, compared with a model in one process and loaded into models with
// other sharding. All values are bitwise equal.
#include "fsdp/state_dict.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "state/testing/state_runs.h"
#include "support/faults/error_of.h"
#include "support/nets/tiny_lm.h"
#include "support/ranks/thread_ranks.h"

namespace fsdp::state::state_dict_test {
namespace {

using namespace testing;  // this project's namespace
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::UnorderedElementsAre;
using enum ShardingStrategy;
using Values = std::map<std::string, torch::Tensor>;
using World = std::shared_ptr<Communicator>;

ShardedRun run_of(const ShardingCase& sharding, const World& world, uint64_t seed) {
  return {sharding, world, seed, /*grouped=*/false};
}
Values plain_values(uint64_t seed) {
  return values_of(*seeded([] { return Net(); }, seed));
}

class StateDicts : public ::testing::TestWithParam<ShardingCase> {
 protected:
  void on_ranks(const std::function<void(const World&)>& body) { run_ranks(GetParam().world_size, body); }
};
INSTANTIATE_TEST_SUITE_P(All, StateDicts, ::testing::ValuesIn(state_cases()),
                         [](const auto& info) { return name_of(info.param); });

// ---------------------------------------------------------------- full

TEST_P(StateDicts, FullEqualsThatOfThePlainModel) {
  on_ranks([&](const World& world) {
    ShardedRun run = run_of(GetParam(), world, 17);
    const FullStateDict values = full_state_dict(*run.sharded, *run.net);
    expect_same(values, plain_values(17));
    // The cut by rows needs memory formats with whole rows.
    const bool keeps_format = GetParam().cut == ShardCut::kFlat || GetParam().world_size == 1;
    EXPECT_EQ(values.at("b.weight").is_contiguous(), !keeps_format);
    EXPECT_TRUE(values.at("tied").is_same(values.at("a.weight")));
    // They are copies: writing to them changes nothing else.
    for (const auto& [name, value] : values) torch::Tensor(value).zero_();
    expect_same(full_state_dict(*run.sharded, *run.net), plain_values(17));
  });
}

TEST_P(StateDicts, FullOnRank0Alone) {
  on_ranks([&](const World& world) {
    ShardedRun run = run_of(GetParam(), world, 17);
    const FullStateDict values = full_state_dict(*run.sharded, *run.net, {.rank0_only = true, .offload_to_cpu = true});
    if (world->rank() == 0) {
      expect_same(values, plain_values(17));
      for (const auto& [name, value] : values) EXPECT_TRUE(value.is_cpu()) << name;
    } else {
      EXPECT_THAT(values, IsEmpty());
    }
    ShardedRun other = run_of(GetParam(), world, 99);
    const LoadReport report = load_full_state_dict(*other.sharded, *other.net, values, {.from_rank0 = true});
    EXPECT_TRUE(report.complete());
    EXPECT_EQ(report.loaded.size(), plain_values(17).size() - 1);  // a shared parameter counts once
    expect_same(full_state_dict(*other.sharded, *other.net), plain_values(17));
  });
}

TEST_P(StateDicts, FullIsTakenByEachRank) {
  on_ranks([&](const World& world) {
    ShardedRun run = run_of(GetParam(), world, 99);
    load_full_state_dict(*run.sharded, *run.net, plain_values(17));
    expect_same(full_state_dict(*run.sharded, *run.net), plain_values(17));
    // The values that operators see, up to the rounding of matrix products, which depends on the address of a matrix.
    const torch::Tensor x = torch::sin(torch::arange(20, at::kDouble)).view({5, 4});
    Net plain = seeded([] { return Net(); }, 17);
    EXPECT_NEAR(run.net->loss(x.to(test_device())).item<double>(), plain->loss(x).item<double>(), 1e-12);
  });
}

// A unit that stays gathered must not keep its old values, and a graph from before the load must not be run backward.
TEST_P(StateDicts, GatheredUnitsSeeLoadedValues) {
  on_ranks([&](const World& world) {
    ShardedRun run = run_of(GetParam(), world, 99);
    run.sharded->unshard();
    const torch::Tensor before = run.net->a->weight.square().sum();
    load_full_state_dict(*run.sharded, *run.net, plain_values(17));
    EXPECT_TRUE(same_bits(run.net->a->weight.detach() * 1, plain_values(17).at("a.weight")));
    EXPECT_THAT(error_of([&] { before.backward(); }), HasSubstr("modified by an inplace operation"));
    run.sharded->reset();
  });
}

// ---------------------------------------------------------------- sharded

TEST_P(StateDicts, ShardedHoldsEachElementAndSendsNothing) {
  std::vector<ShardedStateDict> of_ranks(GetParam().world_size);
  on_ranks([&](const World& world) {
    ShardedRun run = run_of(GetParam(), world, 17);
    const uint64_t sent = world->bytes_sent();
    of_ranks[world->rank()] = sharded_state_dict(*run.sharded, *run.net, {.offload_to_cpu = true});
    EXPECT_EQ(world->bytes_sent(), sent);
    ShardedRun other = run_of(GetParam(), world, 99);
    EXPECT_TRUE(load_sharded_state_dict(*other.sharded, *other.net, of_ranks[world->rank()]).complete());
    expect_same(full_state_dict(*other.sharded, *other.net), plain_values(17));
  });
  ShardedStateDict all = of_ranks[0];
  for (const ShardedStateDict& of_rank : of_ranks) add_parts(all, of_rank);
  for (const ShardingCase& other :
       {ShardingCase{1, kFullShard, true, false}, ShardingCase{3, kFullShard, false, true}}) {
    run_ranks(other.world_size, [&](const World& world) {
      ShardedRun run = run_of(other, world, 99);
      EXPECT_TRUE(load_sharded_state_dict(*run.sharded, *run.net, all).complete());
      expect_same(full_state_dict(*run.sharded, *run.net), plain_values(17));
    });
  }
}

TEST_P(StateDicts, ShardedPartsAreViews) {
  on_ranks([&](const World& world) {
    ShardedRun run = run_of(GetParam(), world, 17);
    const ShardedStateDict values = sharded_state_dict(*run.sharded, *run.net);
    const ShardedStateDict kept = sharded_state_dict(*run.sharded, *run.net, {.offload_to_cpu = true});
    const torch::Tensor zeros = torch::zeros({7, 7}, at::kDouble);
    load_full_state_dict(*run.sharded, *run.net, {{"b.weight", zeros}}, {.strict = false});
    for (const TensorPart& part : values.at("b.weight").parts) EXPECT_EQ(part.values.abs().sum().item<double>(), 0);
    for (const TensorPart& part : kept.at("b.weight").parts) EXPECT_NE(part.values.abs().sum().item<double>(), 0);
  });
}

// ---------------------------------------------------------------- local

TEST_P(StateDicts, LocalComesBackIntoTheSameLayout) {
  on_ranks([&](const World& world) {
    ShardedRun run = run_of(GetParam(), world, 17);
    const uint64_t sent = world->bytes_sent();
    const LocalStateDict values = local_state_dict(*run.sharded, *run.net);
    EXPECT_EQ(world->bytes_sent(), sent);
    for (const auto& [name, shard] : values.shards) {
      EXPECT_EQ(shard.shard.numel(), shard.layout.shard_numel) << name;
      EXPECT_EQ(shard.layout.factor * shard.layout.shard_numel - shard.layout.padding,
                std::accumulate(shard.layout.numels.begin(), shard.layout.numels.end(), int64_t{0}))
          << name;
    }
    ShardedRun other = run_of(GetParam(), world, 99);
    EXPECT_TRUE(load_local_state_dict(*other.sharded, *other.net, values).complete());
    expect_same(full_state_dict(*other.sharded, *other.net), plain_values(17));
  });
}

TEST(LocalStateDicts, NameTheDifferenceOfLayouts) {
  LocalStateDict of_two;
  run_ranks(2, [&](const World& world) {
    ShardedRun run = run_of({2, kFullShard, true, false}, world, 17);
    const LocalStateDict values = local_state_dict(*run.sharded, *run.net, {.offload_to_cpu = true});
    if (world->rank() == 0) of_two = values;
    world->barrier({"kept", 0, Pass::kUser});
    // Loads the values of rank 0 on rank 1.
    const std::string error = error_of([&] { load_local_state_dict(*run.sharded, *run.net, of_two); });
    EXPECT_THAT(error, HasSubstr("differs: a.flat_param is shard 0 of 2"));
    EXPECT_THAT(error, HasSubstr("expected shard 1 of 2, of "));
  });
  run_ranks(1, [&](const World& world) {
    ShardedRun run = run_of({1, kFullShard, true, false}, world, 99);
    const FullStateDict before = full_state_dict(*run.sharded, *run.net);
    EXPECT_THAT(error_of([&] { load_local_state_dict(*run.sharded, *run.net, of_two); }),
                AllOf(HasSubstr("a.flat_param is shard 0 of 2"), HasSubstr("expected shard 0 of 1")));
    const LoadReport report = load_local_state_dict(*run.sharded, *run.net, of_two, /*strict=*/false);
    EXPECT_THAT(report.loaded,
                UnorderedElementsAre("norm.running_mean", "norm.running_var", "norm.num_batches_tracked"));
    of_two.shards.at("a.flat_param").layout.fqns[0] = "a.other";
    of_two.shards.erase("b.flat_param");
    const std::string error = error_of([&] { load_local_state_dict(*run.sharded, *run.net, of_two); });
    EXPECT_THAT(error, AllOf(HasSubstr("a.flat_param is with 'a.other' of "), HasSubstr("missing: b.flat_param")));
    expect_same(full_state_dict(*run.sharded, *run.net), before);
  });
}

// ---------------------------------------------------------------- what does not fit

// Calls `check` with a model on two ranks and values that `change` has changed.
void with_changed(const std::function<void(FullStateDict&)>& change,
                  const std::function<void(ShardedRun&, const FullStateDict&)>& check) {
  run_ranks(2, [&](const World& world) {
    ShardedRun run = run_of({2, kFullShard, true, false}, world, 99);
    FullStateDict values = plain_values(17);
    change(values);
    check(run, values);
  });
}

void misfit(FullStateDict& values) {
  values.erase("frozen");
  values["more"] = torch::zeros({2});
  values["b.bias"] = torch::zeros({8}, at::kDouble);
  values["norm.bias"] = torch::zeros({7});
  values["norm.running_mean"] = torch::zeros({6}, at::kDouble);
}

TEST(LoadingStateDicts, OneErrorListsAllAndNothingIsChanged) {
  with_changed(misfit, [](ShardedRun& run, const FullStateDict& values) {
    for (const bool from_rank0 : {false, true}) {
      const std::string error =
          error_of([&] { load_full_state_dict(*run.sharded, *run.net, values, {.from_rank0 = from_rank0}); });
      EXPECT_THAT(error, AllOf(HasSubstr("missing: frozen"), HasSubstr("unexpected: more"),
                               HasSubstr("differs: b.bias is F64 [8], expected F64 [7]"),
                               HasSubstr("differs: norm.bias is F32 [7], expected F64 [7]"),
                               HasSubstr("differs: norm.running_mean is F64 [6], expected F64 [7]")));
      expect_same(full_state_dict(*run.sharded, *run.net), plain_values(99));
    }
  });
}

TEST(LoadingStateDicts, WithoutStrictTheRestIsLoadedAndReported) {
  with_changed(misfit, [](ShardedRun& run, const FullStateDict& values) {
    for (const bool from_rank0 : {false, true}) {
      const LoadReport report =
          load_full_state_dict(*run.sharded, *run.net, values, {.strict = false, .from_rank0 = from_rank0});
      EXPECT_FALSE(report.complete());
      EXPECT_THAT(report.missing, ElementsAre("frozen"));
      EXPECT_THAT(report.unexpected, ElementsAre("more"));
      EXPECT_EQ(report.mismatched.size(), 3u);
      Values want = plain_values(17);
      for (const char* name : {"frozen", "b.bias", "norm.bias", "norm.running_mean"}) {
        want[name] = plain_values(99).at(name);
      }
      expect_same(full_state_dict(*run.sharded, *run.net), want);
      EXPECT_EQ(report.loaded.size() + 4, want.size() - 1);
      load_full_state_dict(*run.sharded, *run.net, plain_values(99));
    }
  });
}

TEST(LoadingStateDicts, OneRankThatCannotLoadKeepsTheOthersFromIt) {
  run_ranks(2, [&](const World& world) {
    ShardedRun run = run_of({2, kFullShard, true, false}, world, 99);
    FullStateDict values = plain_values(17);
    if (world->rank() == 1) values.erase("a.bias");
    const LoadReport report = load_full_state_dict(*run.sharded, *run.net, values, {.strict = false});
    EXPECT_THAT(report.missing, ElementsAre("a.bias"));
    Values want = plain_values(17);
    want["a.bias"] = plain_values(99).at("a.bias");
    expect_same(full_state_dict(*run.sharded, *run.net), want);
  });
}

TEST(LoadingStateDicts, NamesAreMapped) {
  const auto below = [](FullStateDict& values) {
    FullStateDict renamed;
    for (const auto& [name, value] : values) renamed["module." + name] = value;
    renamed["module.second.weight"] = renamed.at("module.b.weight");
    renamed.erase("module.b.weight");
    values = renamed;
  };
  with_changed(below, [](ShardedRun& run, const FullStateDict& values) {
    const Rename strip = replace_prefix("module.", "");
    const Rename second = rename_by({{"second.weight", "b.weight"}});
    const auto both = [&](const std::string& name) { return second(strip(name)); };
    const LoadReport report = load_full_state_dict(*run.sharded, *run.net, values, {.rename = both});
    EXPECT_EQ(report.renamed.at("b.weight"), "module.second.weight");
    EXPECT_EQ(report.renamed.at("frozen"), "module.frozen");
    expect_same(full_state_dict(*run.sharded, *run.net), plain_values(17));
    EXPECT_THAT(error_of([&] {
                  load_full_state_dict(*run.sharded, *run.net, values,
                                       {.rename = [](const auto&) { return "b.bias"; }});
                }),
                HasSubstr("are both renamed to 'b.bias'"));
    const LoadReport none =
        load_full_state_dict(*run.sharded, *run.net, values, {.strict = false, .rename = replace_prefix("x", "")});
    EXPECT_THAT(none.loaded, IsEmpty());
  });
}

TEST(LoadingStateDicts, ASharedParameterComesUnderAnyOfItsNames) {
  with_changed([](FullStateDict& values) { values.erase("tied"); },
               [](ShardedRun& run, const FullStateDict& values) {
                 EXPECT_TRUE(load_full_state_dict(*run.sharded, *run.net, values).complete());
                 expect_same(full_state_dict(*run.sharded, *run.net), plain_values(17));
               });
  with_changed([](FullStateDict& values) { values["a.weight"] = values["a.weight"] + 1; },
               [](ShardedRun& run, const FullStateDict& values) {
                 for (const bool from_rank0 : {false, true}) {
                   EXPECT_THAT(error_of([&] {
                                 load_full_state_dict(*run.sharded, *run.net, values, {.from_rank0 = from_rank0});
                               }),
                               AllOf(HasSubstr("a.weight is other values"), HasSubstr("'tied'")));
                 }
               });
}

TEST(LoadingStateDicts, PartsMustCoverTheShardsOfARank) {
  run_ranks(2, [&](const World& world) {
    ShardedRun run = run_of({2, kFullShard, true, false}, world, 17);
    ShardedStateDict values = sharded_state_dict(*run.sharded, *run.net);
    // b.weight has column-major order; if it is given row-major, all of it is needed.
    ShardedTensor& by_rows = values.at("b.weight");
    by_rows.strides.clear();
    EXPECT_THAT(error_of([&] { load_sharded_state_dict(*run.sharded, *run.net, values); }),
                AllOf(HasSubstr("b.weight is F64 [7, 7] without elements ["), HasSubstr("holds")));
    by_rows.parts = {{20, 49, torch::arange(20, 49, at::kDouble)}, {0, 30, torch::arange(30, at::kDouble)}};
    load_sharded_state_dict(*run.sharded, *run.net, values);
    EXPECT_TRUE(
        same_bits(full_state_dict(*run.sharded, *run.net).at("b.weight"), torch::arange(49, at::kDouble).view({7, 7})));
    by_rows.parts.back().values[25] = -1;
    EXPECT_THAT(error_of([&] { load_sharded_state_dict(*run.sharded, *run.net, values); }),
                AllOf(HasSubstr("'b.weight': elements [20, 30) are given twice"), HasSubstr("different values")));
    by_rows.parts.back().values = torch::zeros({3}, at::kDouble);
    EXPECT_THAT(error_of([&] { load_sharded_state_dict(*run.sharded, *run.net, values); }),
                AllOf(HasSubstr("ranks 0, 1: "), HasSubstr("'b.weight'"), HasSubstr("[3]")));
    ShardedStateDict other = values;
    other.at("spare").sizes = {4};
    EXPECT_THAT(error_of([&] { add_parts(values, other); }), AllOf(HasSubstr("'spare'"), HasSubstr("F64 [4]")));
  });
}

// Hybrid sharding over a pair of groups, without a group of all ranks.
TEST(LoadingStateDicts, WithoutAGroupOfAllRanks) {
  run_ranks(4, [&](const World& world) {
    const auto pair_only = [&](Options& options) {
      options.mesh->world = nullptr;
      options.communicator = nullptr;
    };
    ShardedRun run({4, kHybridShard, true, false}, world, 99, /*grouped=*/true, pair_only);
    FullStateDict values;
    if (world->rank() == 0) values = plain_values(17);
    EXPECT_TRUE(load_full_state_dict(*run.sharded, *run.net, values, {.from_rank0 = true}).complete());
    expect_same(full_state_dict(*run.sharded, *run.net), plain_values(17));
    values = plain_values(17);
    if (world->rank() == 3) values.erase("spare");
    EXPECT_THAT(error_of([&] { load_full_state_dict(*run.sharded, *run.net, values); }), HasSubstr("missing: spare"));
    run.step(0);
    const FullOptimizerState state = full_optimizer_state(*run.sharded, *run.state);
    run.step(1);
    load_full_optimizer_state(*run.sharded, *run.state, world->rank() == 0 ? state : FullOptimizerState(),
                              {.from_rank0 = true});
    expect_same_state(full_optimizer_state(*run.sharded, *run.state), state);
  });
}

TEST(LoadingStateDicts, NeedTheModuleThatWasSharded) {
  run_ranks(1, [&](const World& world) {
    ShardedRun run = run_of({1, kFullShard, true, false}, world, 17);
    EXPECT_THAT(error_of([&] { full_state_dict(*run.sharded, *run.net->b); }),
                HasSubstr("that fully_shard was called on"));
  });
}

TEST(LoadingStateDicts, IgnoredParametersAreThereAsTheyAre) {
  run_ranks(2, [&](const World& world) {
    const auto ignore_b = [](Options& options, Net& net) { options.ignored_parameters = {net->b->bias}; };
    Net net = seeded([] { return Net(); }, 99);
    Options options = options_of({2, kFullShard, true, false}, world);
    ignore_b(options, net);
    auto sharded = fully_shard(*net, options);
    EXPECT_TRUE(load_full_state_dict(*sharded, *net, plain_values(17)).complete());
    expect_same(full_state_dict(*sharded, *net), plain_values(17));
    EXPECT_TRUE(same_bits(net->b->bias.detach(), plain_values(17).at("b.bias")));
  });
}

}  // namespace
}  // namespace fsdp::state::state_dict_test
