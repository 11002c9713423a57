// Tests that state dicts of a pipeline are those of the whole model, from every mesh and into every other one.
#include "fsdp/pipeline_state.h"

#include "fsdp/fsdp.h"
#include "support/faults/error_of.h"
#include "support/ranks/thread_ranks.h"
#include "support/training/sharding.h"
#include "support/training/trained_stages.h"

namespace fsdp::pipeline_state_test {
namespace {

using namespace fsdp::testing;  // not GoogleTest's
using ::testing::AllOf;
using ::testing::HasSubstr;

using Ranks = std::shared_ptr<Communicator>;

// Whole state dicts, on the host.
struct WholeState {
  FullStateDict values;
  FullOptimizerState optimizer;
};

WholeState whole_state(TrainedStages& run, bool rank0_only) {
  const FullParameterOptions options{.rank0_only = rank0_only, .offload_to_cpu = true};
  return {full_state_dict(run.model(), options), full_optimizer_state(run.model(), run.optimizer(), options)};
}

std::vector<std::set<std::string>> members_of(const FullOptimizerState& state) {
  std::vector<std::set<std::string>> members;
  for (const ParameterGroup& group : state.groups) {
    members.emplace_back(group.parameters.begin(), group.parameters.end());
    EXPECT_EQ(members.back().size(), group.parameters.size()) << "a parameter is in a group twice";
  }
  return members;
}

void expect_equal(const WholeState& got, const WholeState& want, const std::string& what) {
  ASSERT_EQ(got.values.size(), want.values.size()) << what;
  for (const auto& [name, value] : want.values) {
    ASSERT_EQ(got.values.count(name), 1U) << what << ": " << name;
    EXPECT_TRUE(same_bits(got.values.at(name), value)) << what << ": " << name;
  }
  ASSERT_EQ(got.optimizer.state.size(), want.optimizer.state.size()) << what;
  for (const auto& [fqn, leaf] : want.optimizer.state) {
    ASSERT_EQ(got.optimizer.state.count(fqn), 1U) << what << ": " << fqn;
    const LeafState& other = got.optimizer.state.at(fqn);
    EXPECT_EQ(other.scalars, leaf.scalars) << what << ": " << fqn;
    ASSERT_EQ(other.tensors.size(), leaf.tensors.size()) << what << ": " << fqn;
    for (const auto& [name, tensor] : leaf.tensors) {
      EXPECT_TRUE(same_bits(other.tensors.at(name), tensor)) << what << ": " << fqn << "/" << name;
    }
  }
  EXPECT_EQ(members_of(got.optimizer), members_of(want.optimizer)) << what;
  for (size_t i = 0; i < want.optimizer.groups.size(); ++i) {
    EXPECT_EQ(got.optimizer.groups[i].options, want.optimizer.groups[i].options) << what;
  }
}

// Trained for two steps. That of rank 0; other ranks must get nothing.
WholeState trained_on(const StageMesh& mesh) {
  WholeState of_rank_0;
  run_ranks(mesh.ranks(), [&](const Ranks& world) {
    TrainedStages run(world, mesh);
    run.step(0);
    run.step(1);
    WholeState state = whole_state(run, /*rank0_only=*/true);
    if (world->rank() == 0) {
      of_rank_0 = std::move(state);
    } else {
      EXPECT_TRUE(state.values.empty() && state.optimizer.state.empty() && state.optimizer.groups.empty());
    }
  });
  return of_rank_0;
}

TEST(PipelineStateDicts, FullOnesLoadOnEveryMesh) {
  const std::vector<StageMesh> meshes = stage_meshes();
  for (size_t i = 0; i < meshes.size(); ++i) {
    const WholeState saved = trained_on(meshes[i]);
    EXPECT_EQ(saved.optimizer.state.size(), 52U);
    EXPECT_EQ(saved.values.size(), saved.optimizer.state.size() + 1);  // the head is the embedding
    EXPECT_TRUE(same_bits(saved.values.at("lm_head.weight"), saved.values.at("transformer.wte.weight")));
    for (const size_t offset : {1, 2, 4}) {  // between all pairs of meshes in at most two steps
      const size_t j = (i + offset) % meshes.size();
      const bool from_rank0 = (i + offset) % 2 == 0;
      const std::string what = meshes[i].text() + " -> " + meshes[j].text();
      run_ranks(meshes[j].ranks(), [&](const Ranks& world) {
        TrainedStages run(world, meshes[j], /*seed=*/99);
        const WholeState& own = from_rank0 && world->rank() > 0 ? WholeState() : saved;
        const LoadReport values = load_full_state_dict(run.model(), own.values, {.from_rank0 = from_rank0});
        const LoadReport state =
            load_full_optimizer_state(run.model(), run.optimizer(), own.optimizer, {.from_rank0 = from_rank0});
        EXPECT_TRUE(values.complete() && state.complete()) << what;
        EXPECT_EQ(values.loaded.size(), saved.optimizer.state.size()) << what;
        expect_equal(whole_state(run, /*rank0_only=*/false), saved, what);
      });
    }
  }
}

TEST(PipelineStateDicts, ShardedOnesOfAllRanksLoadOnEveryMesh) {
  const std::vector<StageMesh> meshes = stage_meshes();
  for (size_t i = 0; i < meshes.size(); ++i) {
    WholeState saved;
    std::vector<ShardedStateDict> values(static_cast<size_t>(meshes[i].ranks()));
    std::vector<ShardedOptimizerState> states(values.size());
    run_ranks(meshes[i].ranks(), [&](const Ranks& world) {
      TrainedStages run(world, meshes[i]);
      run.step(0);
      const auto rank = static_cast<size_t>(world->rank());
      values[rank] = sharded_state_dict(run.model(), {.offload_to_cpu = true});
      states[rank] = sharded_optimizer_state(run.model(), run.optimizer(), {.offload_to_cpu = true});
      WholeState whole = whole_state(run, /*rank0_only=*/false);
      if (rank == 0) saved = std::move(whole);
    });
    for (size_t rank = 1; rank < values.size(); ++rank) {
      add_parts(values[0], values[rank]);
      add_parts(states[0], states[rank]);
    }
    const StageMesh& to = meshes[(i + 2) % meshes.size()];
    run_ranks(to.ranks(), [&](const Ranks& world) {
      TrainedStages run(world, to, /*seed=*/99);
      EXPECT_TRUE(load_sharded_state_dict(run.model(), values[0]).complete());
      EXPECT_TRUE(load_sharded_optimizer_state(run.model(), run.optimizer(), states[0]).complete());
      expect_equal(whole_state(run, /*rank0_only=*/false), saved, meshes[i].text() + " -> " + to.text());
    });
  }
}

TEST(PipelineStateDicts, NoStageChangesIfOneCannotLoad) {
  const StageMesh mesh = stage_meshes()[2];
  const WholeState saved = trained_on(mesh);
  run_ranks(mesh.ranks(), [&](const Ranks& world) {
    TrainedStages run(world, mesh, /*seed=*/99);
    for (const bool from_rank0 : {false, true}) {
      const WholeState before = whole_state(run, /*rank0_only=*/false);
      FullStateDict values = saved.values;
      values.erase("transformer.h.3.mlp.c_fc.weight");
      values["transformer.h.4.mlp.c_fc.weight"] = torch::ones({3});
      values["transformer.h.0.ln_1.bias"] = torch::ones({3});
      EXPECT_THAT(
          error_of([&] { load_full_state_dict(run.model(), values, {.from_rank0 = from_rank0}); }),
          AllOf(HasSubstr("missing: transformer.h.3.mlp.c_fc.weight"),
                HasSubstr("unexpected: transformer.h.4.mlp.c_fc.weight"), HasSubstr("transformer.h.0.ln_1.bias")));
      expect_equal(whole_state(run, /*rank0_only=*/false), before, "after an error");
      const LoadReport report = load_full_state_dict(run.model(), values, {.strict = false, .from_rank0 = from_rank0});
      EXPECT_EQ(report.loaded.size(), saved.optimizer.state.size() - 2);
    }
  });
}

TEST(PipelineStateDicts, NamesMayBeMapped) {
  const StageMesh mesh = stage_meshes()[3];
  const WholeState saved = trained_on(mesh);
  WholeState renamed;
  for (const auto& [name, value] : saved.values) renamed.values["module." + name] = value;
  for (const auto& [fqn, state] : saved.optimizer.state) renamed.optimizer.state["module." + fqn] = state;
  renamed.optimizer.groups = saved.optimizer.groups;
  for (ParameterGroup& group : renamed.optimizer.groups) {
    for (std::string& name : group.parameters) name = "module." + name;
  }
  const Rename without_prefix = [](const std::string& name) { return name.substr(7); };
  run_ranks(mesh.ranks(), [&](const Ranks& world) {
    TrainedStages run(world, mesh, /*seed=*/99);
    const FullLoadOptions options{.rename = without_prefix, .from_rank0 = true};
    EXPECT_TRUE(load_full_state_dict(run.model(), renamed.values, options).complete());
    EXPECT_TRUE(load_full_optimizer_state(run.model(), run.optimizer(), renamed.optimizer, options).complete());
    expect_equal(whole_state(run, /*rank0_only=*/false), saved, "renamed");
  });
}

// What each rank of a mesh holds after a step, and the whole of it.
struct LocalStates {
  std::vector<LocalStateDict> values;
  std::vector<LocalOptimizerState> optimizers;
  WholeState whole;
};

LocalStates local_states_of(const StageMesh& mesh) {
  LocalStates states;
  states.values.resize(static_cast<size_t>(mesh.ranks()));
  states.optimizers.resize(states.values.size());
  run_ranks(mesh.ranks(), [&](const Ranks& world) {
    TrainedStages run(world, mesh);
    run.step(0);
    const auto rank = static_cast<size_t>(world->rank());
    states.values[rank] = local_state_dict(run.model(), {.offload_to_cpu = true});
    states.optimizers[rank] = local_optimizer_state(run.model(), run.optimizer(), {.offload_to_cpu = true});
    WholeState whole = whole_state(run, /*rank0_only=*/false);
    if (rank == 0) states.whole = std::move(whole);
  });
  return states;
}

TEST(PipelineStateDicts, LocalOnesLoadOnTheirMesh) {
  for (const StageMesh& mesh : stage_meshes()) {
    const LocalStates saved = local_states_of(mesh);
    run_ranks(mesh.ranks(), [&](const Ranks& world) {
      TrainedStages run(world, mesh, /*seed=*/99);
      const auto rank = static_cast<size_t>(world->rank());
      const LoadReport values = load_local_state_dict(run.model(), saved.values[rank]);
      const LoadReport state = load_local_optimizer_state(run.model(), run.optimizer(), saved.optimizers[rank]);
      EXPECT_TRUE(values.complete() && state.complete()) << mesh.text();
      expect_equal(whole_state(run, /*rank0_only=*/false), saved.whole, mesh.text());
    });
  }
}

TEST(PipelineStateDicts, LocalKeysNameStagesAndLayoutsTheWholeModelsParameters) {
  const StageMesh mesh{"ZBVZeroBubble", 2, 2, 1, 1};
  const LocalStates saved = local_states_of(mesh);
  std::set<std::string> fqns;
  for (size_t rank = 0; rank < saved.values.size(); ++rank) {
    for (const auto& [key, shard] : saved.values[rank].shards) {
      EXPECT_THAT(key, HasSubstr("flat_param"));
      // Rank 0 of the V has the first and the last stage, rank 1 those between.
      EXPECT_TRUE(rank == 0 ? key.rfind("stage_0/", 0) == 0 || key.rfind("stage_3/", 0) == 0
                            : key.rfind("stage_1/", 0) == 0 || key.rfind("stage_2/", 0) == 0)
          << key;
      fqns.insert(shard.layout.fqns.begin(), shard.layout.fqns.end());
    }
  }
  for (const auto& [fqn, leaf] : saved.whole.optimizer.state) fqns.erase(fqn);
  EXPECT_TRUE(fqns.empty()) << *fqns.begin();
  // Both copies of the embedding, which rank 0 holds under one name.
  const auto copies = [&](const std::string& stage) {
    return saved.optimizers[0].state.count(stage + "transformer.wte.weight");
  };
  EXPECT_EQ(copies("stage_0/") + copies("stage_3/"), 2U);
}

TEST(PipelineStateDicts, LocalOnesOfOtherStagesDoNotFit) {
  const StageMesh mesh{"Interleaved1F1B", 2, 2, 1, 1};
  const LocalStates saved = local_states_of({"1F1B", 2, 1, 1, 1});
  run_ranks(mesh.ranks(), [&](const Ranks& world) {
    TrainedStages run(world, mesh, /*seed=*/99);
    const WholeState before = whole_state(run, /*rank0_only=*/false);
    const auto rank = static_cast<size_t>(world->rank());
    EXPECT_THAT(error_of([&] { load_local_state_dict(run.model(), saved.values[rank]); }),
                AllOf(HasSubstr("load_local_state_dict"), HasSubstr("missing: "), HasSubstr("stage_3/")));
    EXPECT_THAT(error_of([&] { load_local_optimizer_state(run.model(), run.optimizer(), saved.optimizers[rank]); }),
                HasSubstr("load_local_optimizer_state"));
    expect_equal(whole_state(run, /*rank0_only=*/false), before, "after an error");
  });
}

}  // namespace
}  // namespace fsdp::pipeline_state_test
