// Tests that the state of a model whose parameters are split over ranks is that of the whole model: saved on one mesh,
// it loads on any other one, equal to the bit.
#include "fsdp/checkpoint.h"
#include "fsdp/optimizer_state.h"
#include "fsdp/state_dict.h"
#include "support/files/temporary_folder.h"
#include "support/nets/split_net.h"
#include "support/ranks/thread_ranks.h"

namespace fsdp::tensor_parallel_state_test {
namespace {

using namespace fsdp::testing;  // not GoogleTest's
namespace fs = std::filesystem;

using Ranks = std::shared_ptr<Communicator>;
using Weights = std::map<std::string, torch::Tensor>;

constexpr SplitNetShape kShape{6, 3, true, false};

struct Mesh {
  int data = 1, tensor = 1;
  bool use_orig_params = true;
  int size() const { return data * tensor; }
  std::string text() const { return c10::str(data, " x ", tensor, use_orig_params ? "" : ", flat leaves"); }
};

const std::vector<Mesh> kMeshes = {{1, 1}, {1, 2}, {1, 3, false}, {2, 1}, {2, 2}};

// A model with an optimizer on one rank of a mesh.
struct SplitRun {
  SplitRun(const Ranks& world_, const Mesh& shape)
      : world(world_), mesh(DeviceMesh::make(world, {{"dp_shard", shape.data}, {"tp", shape.tensor}})) {
    Options options = split_net_options(mesh, kShape);
    options.use_orig_params = shape.use_orig_params;
    sharded = fully_shard(*net, options);
    optimizer = std::make_unique<torch::optim::AdamW>(sharded->parameters(), torch::optim::AdamWOptions(0.05));
    state = state_of(*optimizer);
  }
  void step(int number) {
    sharded->zero_grad();
    net->loss(split_net_ids(number, 0)).backward();
    optimizer->step();
  }
  CheckpointedRun checkpointed() { return {*sharded, *net, state.get()}; }

  Ranks world;
  DeviceMesh mesh;
  SplitNet net = make_split_net(kShape);
  std::shared_ptr<ShardedModule> sharded;
  std::unique_ptr<torch::optim::AdamW> optimizer;
  std::unique_ptr<OptimizerState> state;
};

// All tensors of a run, by name.
Weights contents_of(SplitRun& run) {
  Weights contents = full_state_dict(*run.sharded, *run.net, {.rank0_only = false, .offload_to_cpu = false});
  const FullOptimizerState optimizer =
      full_optimizer_state(*run.sharded, *run.state, {.rank0_only = false, .offload_to_cpu = false});
  for (const auto& [fqn, state] : optimizer.state) {
    for (const auto& [name, tensor] : state.tensors) contents[fqn + "/" + name] = tensor;
  }
  for (const ParameterGroup& group : optimizer.groups) {
    contents["number of parameters"] = torch::tensor(static_cast<int64_t>(group.parameters.size()));
  }
  return contents;
}

void expect_equal(const Weights& got, const Weights& want, const std::string& what) {
  EXPECT_EQ(got.size(), want.size()) << what;
  for (const auto& [name, tensor] : want) {
    ASSERT_EQ(got.count(name), 1u) << what << ": " << name;
    EXPECT_TRUE(same_bits(got.at(name), tensor)) << what << ": " << name;
  }
}

// Trains for two steps on `mesh` and returns what it then has, after `keep` was called on each rank.
Weights trained_on(const Mesh& mesh, const std::function<void(SplitRun& run)>& keep) {
  Weights contents;
  run_ranks(mesh.size(), [&](Ranks world) {
    SplitRun run(world, mesh);
    for (int step = 0; step < 2; ++step) run.step(step);
    keep(run);
    const Weights found = contents_of(run);
    if (world->rank() == 0) contents = found;
  });
  return contents;
}

TEST(SplitState, ACheckpointOfAnyMeshLoadsOnAnyOther) {
  for (const Mesh& saver : kMeshes) {
    const TemporaryFolder folder;
    const fs::path path = folder.path() / "checkpoint";
    const Weights expected = trained_on(
        saver, [&](SplitRun& run) { save_checkpoint(path, run.checkpointed(), R"({"step": 2})", *run.world); });
    for (const Mesh& loader : kMeshes) {
      run_ranks(loader.size(), [&](Ranks world) {
        SplitRun run(world, loader);
        EXPECT_EQ(load_checkpoint(path, run.checkpointed(), *world).user, R"({"step":2})");
        expect_equal(contents_of(run), expected, saver.text() + " on " + loader.text());
      });
    }
  }
}

TEST(SplitState, FullStateDictsOfAnyMeshLoadOnAnyOther) {
  for (const Mesh& saver : kMeshes) {
    FullStateDict model;
    FullOptimizerState optimizer;
    const Weights expected = trained_on(saver, [&](SplitRun& run) {
      const FullStateDict values = full_state_dict(*run.sharded, *run.net, {.rank0_only = true});
      const FullOptimizerState state = full_optimizer_state(*run.sharded, *run.state, {.rank0_only = true});
      EXPECT_EQ(values.empty(), run.world->rank() != 0);
      if (run.world->rank() == 0) model = values;
      if (run.world->rank() == 0) optimizer = state;
    });
    for (const Mesh& loader : kMeshes) {
      run_ranks(loader.size(), [&](Ranks world) {
        SplitRun run(world, loader);
        const bool first = world->rank() == 0;
        load_full_state_dict(*run.sharded, *run.net, first ? model : FullStateDict(), {.from_rank0 = true});
        load_full_optimizer_state(*run.sharded, *run.state, first ? optimizer : FullOptimizerState(),
                                  {.from_rank0 = true});
        expect_equal(contents_of(run), expected, saver.text() + " on " + loader.text());
      });
    }
  }
}

TEST(SplitState, ShardedStateDictsHaveRangesOfTheWhole) {
  for (const Mesh& mesh : kMeshes) {
    std::vector<ShardedStateDict> saved(static_cast<size_t>(mesh.size()));
    std::vector<ShardedOptimizerState> states(saved.size());
    const Weights expected = trained_on(mesh, [&](SplitRun& run) {
      const auto rank = static_cast<size_t>(run.world->rank());
      saved[rank] = sharded_state_dict(*run.sharded, *run.net);
      states[rank] = sharded_optimizer_state(*run.sharded, *run.state);
    });
    ShardedStateDict all = saved.front();
    ShardedOptimizerState all_states = states.front();
    for (size_t rank = 1; rank < saved.size(); ++rank) {
      add_parts(all, saved[rank]);
      add_parts(all_states, states[rank]);
    }
    run_ranks(2, [&](Ranks world) {
      SplitRun run(world, {1, 2});
      load_sharded_state_dict(*run.sharded, *run.net, all);
      load_sharded_optimizer_state(*run.sharded, *run.state, all_states);
      expect_equal(contents_of(run), expected, mesh.text());
    });
  }
}

TEST(SplitState, RankZeroSendsItsValuesToAllParts) {
  run_ranks(4, [](Ranks world) {
    DeviceMesh mesh = DeviceMesh::make(world, {{"dp_shard", 2}, {"tp", 2}});
    SplitNet net = make_split_net(kShape);
    const Weights expected = weights_of(*net);
    {
      const torch::NoGradGuard no_grad;
      for (torch::Tensor& parameter : net->parameters()) parameter.add_(world->rank());
    }
    Options options = split_net_options(mesh, kShape);
    options.sync_module_states = true;
    const auto sharded = fully_shard(*net, options);
    expect_equal(
        full_state_dict(*sharded, *net, {.rank0_only = false, .offload_to_cpu = false}),
        [&] {
          Weights all = expected;
          all["head.weight"] = expected.at("embed.weight");
          return all;
        }(),
        "sync_module_states");
  });
}

}  // namespace
}  // namespace fsdp::tensor_parallel_state_test
