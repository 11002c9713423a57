// State dicts of optimizers, compared with torch::optim::AdamW on whole parameters with the same gradients.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "fsdp/state_dict.h"
#include "state/testing/state_runs.h"
#include "support/faults/error_of.h"
#include "support/ranks/thread_ranks.h"

namespace fsdp::state::optimizer_state_dict_test {
namespace {

using namespace testing;  // this project's namespace
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using enum ShardingStrategy;
using World = std::shared_ptr<Communicator>;

class OptimizerStateDicts : public ::testing::TestWithParam<ShardingCase> {
 protected:
  // Flat leaves contain parameters of all kinds, so they are in one group.
  bool grouped() const { return GetParam().use_orig_params; }
  void on_ranks(const std::function<void(const World&)>& body) { run_ranks(GetParam().world_size, body); }
  ShardedRun trained(const World& world) const {
    ShardedRun run(GetParam(), world, 17, grouped());
    for (int step : {0, 1, 2}) run.step(step);
    return run;
  }
  ShardedRun fresh(const World& world) const {
    ShardedRun run(GetParam(), world, 17, grouped());
    run.step(7);  // the loaded state must replace this state
    return run;
  }
  PlainRun plain(int steps) const {
    PlainRun run(grouped(), !GetParam().use_orig_params);
    for (int step = 0; step < steps; ++step) run.step(step);
    return run;
  }
  // Continues both runs and expects the same results.
  void expect_goes_on(ShardedRun& run, int from) const {
    PlainRun want = plain(from);
    load_full_state_dict(*run.sharded, *run.net, values_of(*want.net));
    for (int step : {from, from + 1}) {
      run.step(step);
      want.step(step);
    }
    expect_same(full_state_dict(*run.sharded, *run.net), values_of(*want.net));
  }
};
INSTANTIATE_TEST_SUITE_P(All, OptimizerStateDicts, ::testing::ValuesIn(state_cases()),
                         [](const auto& info) { return name_of(info.param); });

FullOptimizerState named_state(const PlainRun& run) {
  return rekey_optimizer_state(indexed_optimizer_state(*run.state), run.fqns);
}

TEST_P(OptimizerStateDicts, FullIsThatOfOneProcess) {
  on_ranks([&](const World& world) {
    ShardedRun run = trained(world);
    const FullOptimizerState state = full_optimizer_state(*run.sharded, *run.state);
    expect_same_state(state, named_state(plain(3)));
    EXPECT_EQ(state.state.count("spare"), GetParam().use_orig_params ? 0u : 1u);
    EXPECT_EQ(state.state.count("frozen"), 0u);
    expect_same(full_state_dict(*run.sharded, *run.net), values_of(*plain(3).net));
  });
}

TEST_P(OptimizerStateDicts, FullIsSentFromRank0ToAll) {
  on_ranks([&](const World& world) {
    ShardedRun run = trained(world);
    const FullOptimizerState state =
        full_optimizer_state(*run.sharded, *run.state, {.rank0_only = true, .offload_to_cpu = true});
    if (world->rank() != 0) {
      EXPECT_THAT(state.state, IsEmpty());
      EXPECT_THAT(state.groups, IsEmpty());
    }
    ShardedRun other = fresh(world);
    EXPECT_TRUE(load_full_optimizer_state(*other.sharded, *other.state, state, {.from_rank0 = true}).complete());
    expect_same_state(full_optimizer_state(*other.sharded, *other.state), named_state(plain(3)));
    expect_goes_on(other, 3);
  });
}

// A state of a run without sharding continues in a sharded run, and the other way round.
TEST_P(OptimizerStateDicts, OfARunWithoutShardingContinues) {
  on_ranks([&](const World& world) {
    PlainRun before = plain(3);
    const IndexedOptimizerState indexed = indexed_optimizer_state(*before.state);
    std::vector<std::string> of_ddp;
    for (const std::string& fqn : before.fqns) of_ddp.push_back("module." + fqn);
    ShardedRun run = fresh(world);
    load_full_optimizer_state(*run.sharded, *run.state, rekey_optimizer_state(indexed, of_ddp, "module."));
    expect_goes_on(run, 3);

    PlainRun after(grouped(), !GetParam().use_orig_params, 99);
    load_indexed_optimizer_state(
        *after.state, rekey_optimizer_state(full_optimizer_state(*run.sharded, *run.state), of_ddp, "module."));
    expect_same_state(named_state(after), named_state(plain(5)));
  });
}

TEST_P(OptimizerStateDicts, ShardedSendsNothingAndFitsAnyLayout) {
  std::vector<ShardedOptimizerState> of_ranks(GetParam().world_size);
  on_ranks([&](const World& world) {
    ShardedRun run = trained(world);
    const uint64_t sent = world->bytes_sent();
    of_ranks[world->rank()] = sharded_optimizer_state(*run.sharded, *run.state, {.offload_to_cpu = true});
    EXPECT_EQ(world->bytes_sent(), sent);
    ShardedRun other = fresh(world);
    EXPECT_TRUE(load_sharded_optimizer_state(*other.sharded, *other.state, of_ranks[world->rank()]).complete());
    expect_goes_on(other, 3);
  });
  ShardedOptimizerState all = of_ranks[0];
  for (const ShardedOptimizerState& of_rank : of_ranks) add_parts(all, of_rank);
  run_ranks(3, [&](const World& world) {
    ShardedRun run({3, kFullShard, GetParam().use_orig_params, false}, world, 17, grouped());
    run.step(7);
    EXPECT_TRUE(load_sharded_optimizer_state(*run.sharded, *run.state, all).complete());
    expect_goes_on(run, 3);
  });
}

TEST_P(OptimizerStateDicts, LocalComesBackIntoTheSameLayout) {
  on_ranks([&](const World& world) {
    ShardedRun run = trained(world);
    const uint64_t sent = world->bytes_sent();
    const LocalOptimizerState state = local_optimizer_state(*run.sharded, *run.state, {.offload_to_cpu = true});
    EXPECT_EQ(world->bytes_sent(), sent);
    ShardedRun other = fresh(world);
    EXPECT_TRUE(load_local_optimizer_state(*other.sharded, *other.state, state).complete());
    expect_goes_on(other, 3);
  });
}

// ---------------------------------------------------------------- what does not fit

// Calls `body` with a run on two ranks whose optimizer has state, and this state.
void with_state(bool use_orig_params, const std::function<void(ShardedRun& run, FullOptimizerState state)>& body) {
  run_ranks(2, [&](const World& world) {
    ShardedRun run({2, kFullShard, use_orig_params, false}, world, 17, /*grouped=*/use_orig_params);
    run.step(0);
    body(run, full_optimizer_state(*run.sharded, *run.state));
  });
}

TEST(LoadingOptimizerState, OneErrorListsAllAndNothingIsChanged) {
  with_state(true, [](ShardedRun& run, FullOptimizerState state) {
    const FullOptimizerState before = state;
    state.state["frozen"] = state.state.at("norm.weight");
    state.state.at("a.bias").tensors["exp_avg"] = torch::zeros({8}, at::kDouble);
    std::erase(state.groups[0].parameters, "b.weight");
    state.state.erase("b.weight");
    for (const bool from_rank0 : {false, true}) {
      const std::string error =
          error_of([&] { load_full_optimizer_state(*run.sharded, *run.state, state, {.from_rank0 = from_rank0}); });
      EXPECT_THAT(error, AllOf(HasSubstr("missing: b.weight"), HasSubstr("unexpected: frozen"),
                               HasSubstr("differs: a.bias/exp_avg is F64 [8], expected F64 [7]")));
      expect_same_state(full_optimizer_state(*run.sharded, *run.state), before);
    }
    run.step(1);
    const FullOptimizerState now = full_optimizer_state(*run.sharded, *run.state);
    const LoadReport report = load_full_optimizer_state(*run.sharded, *run.state, state, {.strict = false});
    EXPECT_THAT(report.missing, ElementsAre("b.weight"));
    FullOptimizerState want = before;
    for (const char* fqn : {"b.weight", "a.bias"}) want.state[fqn] = now.state.at(fqn);
    expect_same_state(full_optimizer_state(*run.sharded, *run.state), want);
  });
}

TEST(LoadingOptimizerState, OtherDtypesAndOptimizersAreRefused) {
  with_state(true, [](ShardedRun& run, FullOptimizerState state) {
    FullOptimizerState single = state;
    for (auto& [name, tensor] : single.state.at("b.bias").tensors) tensor = tensor.to(at::kFloat);
    EXPECT_THAT(error_of([&] { load_full_optimizer_state(*run.sharded, *run.state, single); }),
                HasSubstr("values are not cast implicitly"));
    for (auto& [fqn, of_parameter] : state.state) of_parameter = {{{"sum", of_parameter.tensors.at("exp_avg")}}, {}};
    EXPECT_THAT(error_of([&] { load_full_optimizer_state(*run.sharded, *run.state, state); }), HasSubstr("AdamW"));
  });
}

// Errors that only the optimizer can detect are found before anything is changed.
TEST(LoadingOptimizerState, ForeignOptionsAreRefusedBeforehand) {
  with_state(true, [](ShardedRun& run, FullOptimizerState state) {
    const FullOptimizerState before = state;
    for (const auto& [fqn, of_parameter] : before.state) {
      for (const auto& [name, tensor] : of_parameter.tensors)
        state.state.at(fqn).tensors.at(name) = torch::zeros_like(tensor);
    }
    EXPECT_EQ(state.groups[1].options.at("decoupled_weight_decay"), 1);
    state.groups[1].options.at("decoupled_weight_decay") = 0;
    EXPECT_THAT(
        error_of([&] { load_full_optimizer_state(*run.sharded, *run.state, state); }),
        AllOf(HasSubstr("parameter group 1"), HasSubstr("'decoupled_weight_decay' is always 1, but 0 was given")));
    state.groups[1].options = {{"momentum", 0.5}};
    state.state.at("b.bias").scalars["count"] = 3;
    EXPECT_THAT(error_of([&] { load_full_optimizer_state(*run.sharded, *run.state, state); }),
                AllOf(HasSubstr("b.bias is not for this optimizer"), HasSubstr("'count'"),
                      HasSubstr("parameter group 1 is not for this optimizer"), HasSubstr("have no 'decoupled")));
    expect_same_state(full_optimizer_state(*run.sharded, *run.state), before);
    const LoadReport report = load_full_optimizer_state(*run.sharded, *run.state, state, {.strict = false});
    EXPECT_EQ(report.mismatched.size(), 2u);
    EXPECT_THAT(report.loaded, Not(::testing::Contains("b.bias")));
    const FullOptimizerState now = full_optimizer_state(*run.sharded, *run.state);
    EXPECT_TRUE(now.state.at("a.bias").tensors.at("exp_avg").eq(0).all().item<bool>());
    EXPECT_TRUE(
        same_bits(now.state.at("b.bias").tensors.at("exp_avg"), before.state.at("b.bias").tensors.at("exp_avg")));
  });
}

// Loading needs no memory of its own, and values that are not loaded remain.
TEST(LoadingOptimizerState, FillsTheExistingTensors) {
  for (const bool use_orig_params : {true, false}) {
    with_state(use_orig_params, [](ShardedRun& run, FullOptimizerState state) {
      const auto addresses = [&] {
        std::vector<const void*> found;
        for (const torch::Tensor& leaf : run.sharded->parameters()) {
          if (const auto kept = run.state->leaf(leaf))
            for (const auto& [name, tensor] : kept->tensors)
              if (tensor.numel() > 0) found.push_back(tensor.const_data_ptr());
        }
        return found;
      };
      for (auto& [fqn, of_parameter] : state.state)
        for (auto& [name, tensor] : of_parameter.tensors) tensor = tensor + 1;
      const FullOptimizerState before = full_optimizer_state(*run.sharded, *run.state);
      FullOptimizerState part = state;
      part.state.erase("b.bias");
      for (auto& group : part.groups) std::erase(group.parameters, "b.bias");
      const auto at_first = addresses();
      EXPECT_THAT(load_full_optimizer_state(*run.sharded, *run.state, part, {.strict = false}).missing,
                  ElementsAre("b.bias"));
      EXPECT_EQ(addresses(), at_first);
      FullOptimizerState want = state;
      want.state.at("b.bias") = before.state.at("b.bias");
      expect_same_state(full_optimizer_state(*run.sharded, *run.state), want);
    });
  }
}

TEST(LoadingOptimizerState, ParametersOfOneGroupComeFromOne) {
  with_state(true, [](ShardedRun& run, FullOptimizerState state) {
    state.groups[0].options.at("lr") = 0.25;
    std::erase(state.groups[1].parameters, "a.bias");
    state.groups[0].parameters.push_back("a.bias");
    EXPECT_THAT(error_of([&] { load_full_optimizer_state(*run.sharded, *run.state, state); }),
                AllOf(HasSubstr("parameter group 1 is several: "), HasSubstr("'a.bias'")));
    load_full_optimizer_state(*run.sharded, *run.state, state, {.strict = false});
    EXPECT_EQ(run.state->options(0).at("lr"), 0.25);
    EXPECT_EQ(run.state->options(1).at("lr"), 0.05);
  });
}

TEST(LoadingOptimizerState, ParametersOfOneLeafHaveTheSameNumbers) {
  with_state(false, [](ShardedRun& run, FullOptimizerState state) {
    state.state.at("b.bias").scalars.at("step") = 5;
    EXPECT_THAT(
        error_of([&] { load_full_optimizer_state(*run.sharded, *run.state, state); }),
        AllOf(HasSubstr(R"(differs: b.bias is {"step":5.0}, expected {"step":1.0})"), HasSubstr("use_orig_params")));
  });
}

TEST(LoadingOptimizerState, NamesAreMapped) {
  with_state(true, [](ShardedRun& run, FullOptimizerState state) {
    const FullOptimizerState before = state;
    FullOptimizerState renamed;
    for (const auto& [fqn, of_parameter] : state.state) renamed.state["net." + fqn] = of_parameter;
    for (ParameterGroup group : state.groups) {
      for (std::string& fqn : group.parameters) fqn = "net." + fqn;
      renamed.groups.push_back(group);
    }
    run.step(1);
    EXPECT_THAT(error_of([&] { load_full_optimizer_state(*run.sharded, *run.state, renamed); }),
                HasSubstr("missing: tied"));
    for (const bool from_rank0 : {false, true}) {
      const LoadReport report = load_full_optimizer_state(
          *run.sharded, *run.state, renamed, {.rename = replace_prefix("net.", ""), .from_rank0 = from_rank0});
      EXPECT_EQ(report.renamed.at("b.bias"), "net.b.bias");
      expect_same_state(full_optimizer_state(*run.sharded, *run.state), before);
    }
  });
}

TEST(LoadingOptimizerState, ALocalOneNeedsItsLeaves) {
  run_ranks(2, [&](const World& world) {
    ShardedRun orig({2, kFullShard, true, false}, world, 17, false);
    ShardedRun flat({2, kFullShard, false, false}, world, 17, false);
    orig.step(0);
    flat.step(0);
    LocalOptimizerState state = local_optimizer_state(*orig.sharded, *orig.state);
    EXPECT_THAT(error_of([&] { load_local_optimizer_state(*flat.sharded, *flat.state, state); }),
                AllOf(HasSubstr("missing: a.flat_param"), HasSubstr("unexpected: b.bias"),
                      HasSubstr("parameter group 0 is of ")));
    state.layouts.at("b.flat_param").padding += 1;
    EXPECT_THAT(error_of([&] { load_local_optimizer_state(*orig.sharded, *orig.state, state); }),
                AllOf(HasSubstr("differs: b.flat_param is shard "), Not(HasSubstr("unexpected"))));
    const LoadReport report = load_local_optimizer_state(*orig.sharded, *orig.state, state, /*strict=*/false);
    EXPECT_THAT(report.loaded, ::testing::Contains("a.bias"));
    EXPECT_THAT(report.loaded, Not(::testing::Contains("b.bias")));
  });
}

// ---------------------------------------------------------------- numbers and names

TEST(RekeyedState, NumbersAndNamesMustBeKnown) {
  PlainRun run(/*grouped=*/true, false);
  run.step(0);
  const IndexedOptimizerState indexed = indexed_optimizer_state(*run.state);
  std::vector<std::string> fqns = run.fqns;
  const FullOptimizerState named = rekey_optimizer_state(indexed, fqns);
  fqns.pop_back();
  EXPECT_THAT(error_of([&] { rekey_optimizer_state(indexed, fqns); }),
              AllOf(HasSubstr(c10::str("parameter ", fqns.size(), " of ", fqns.size()))));
  EXPECT_THAT(error_of([&] { rekey_optimizer_state(named, fqns); }), HasSubstr("'" + run.fqns.back() + "'"));
  EXPECT_THAT(error_of([&] { rekey_optimizer_state(indexed, run.fqns, "module."); }),
              HasSubstr("'" + run.fqns.front() + "' does not begin with 'module.'"));
  fqns.push_back(fqns.front());
  EXPECT_THAT(error_of([&] { rekey_optimizer_state(indexed, fqns); }), HasSubstr("occurs twice"));
  IndexedOptimizerState other = indexed;
  other.groups.pop_back();
  EXPECT_THAT(error_of([&] { load_indexed_optimizer_state(*run.state, other); }), HasSubstr("1 parameter groups"));
  other = indexed;
  other.groups[0].parameters[0] = 5;
  EXPECT_THAT(error_of([&] { load_indexed_optimizer_state(*run.state, other); }), HasSubstr("parameter group 0"));
  other = indexed;
  other.state[77] = {};
  EXPECT_THAT(error_of([&] { load_indexed_optimizer_state(*run.state, other); }), HasSubstr("parameter 77"));
}

}  // namespace
}  // namespace fsdp::state::optimizer_state_dict_test
