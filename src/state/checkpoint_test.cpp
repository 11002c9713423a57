// The public functions for checkpoints on disk.
#include "fsdp/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "state/testing/state_runs.h"
#include "support/faults/error_of.h"
#include "support/faults/faulty_file_system.h"
#include "support/files/temporary_folder.h"
#include "support/ranks/thread_ranks.h"

namespace fsdp::state::checkpoint_test {
namespace {

using namespace testing;  // this project's namespace
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using enum ShardingStrategy;
using World = std::shared_ptr<Communicator>;

// The model as the child "net" of another module.
struct OuterImpl : torch::nn::Module {
  explicit OuterImpl(Net inner) : net(register_module("net", std::move(inner))) {}
  Net net;
};
TORCH_MODULE(Outer);

class PublicCheckpoints : public ::testing::Test {
 protected:
  void save(const World& world) {
    ShardedRun run({2, kFullShard, true, false}, world, 17, true);
    run.step(0);
    save_checkpoint(path, {*run.sharded, *run.net, run.state.get()}, R"({"step": 1})", *world);
  }
  UnsyncedFileSystem unsynced;
  const formats::FileSystemGuard guard{unsynced};
  const testing::TemporaryFolder folder;
  const std::filesystem::path path = folder.path() / "it";
};

TEST_F(PublicCheckpoints, ComeBackFromAnAsynchronousSave) {
  run_ranks(2, [&](const World& world) {
    ShardedRun run({2, kFullShard, true, false}, world, 17, true);
    run.step(0);
    AsyncCheckpointer checkpointer(world, SecondSave::kRefuse);
    checkpointer.save(path, {*run.sharded, *run.net, run.state.get(), {{"seed", at::full({1}, world->rank())}}},
                      R"({"step": 1})");
    run.step(1);
    std::optional<std::filesystem::path> saved;
    while (!saved) saved = checkpointer.advance();
    EXPECT_EQ(saved, path);
    EXPECT_EQ(checkpointer.finish(), std::nullopt);
    EXPECT_THAT(error_of([&] { checkpointer.save(path, {*run.sharded, *run.net}, "{"); }),
                HasSubstr("not a JSON text"));
    ShardedRun other({2, kShardGradOp, true, false}, world, 99, true);
    const LoadedCheckpoint loaded = load_checkpoint(path, {*other.sharded, *other.net, other.state.get()}, *world);
    EXPECT_EQ(loaded.user, R"({"step":1})");
    EXPECT_TRUE(loaded.of_rank.at("seed").equal(at::full({1}, world->rank())));
    PlainRun plain(true, false);
    plain.step(0);
    expect_same(full_state_dict(*other.sharded, *other.net), values_of(*plain.net));
  });
}

TEST_F(PublicCheckpoints, ComeBack) {
  run_ranks(2, [&](const World& world) {
    save(world);
    ShardedRun run({2, kShardGradOp, true, false}, world, 99, true);
    const torch::Tensor before = run.net->b->weight.square().sum();
    const LoadedCheckpoint loaded = load_checkpoint(path, {*run.sharded, *run.net, run.state.get()}, *world);
    // A graph from before the load must not be run backward.
    EXPECT_THAT(error_of([&] { before.backward(); }), HasSubstr("its shards were written"));
    run.sharded->reset();
    EXPECT_EQ(loaded.user, R"({"step":1})");
    EXPECT_TRUE(loaded.model.complete());
    EXPECT_TRUE(loaded.optimizer.complete());
    PlainRun plain(true, false);
    plain.step(0);
    expect_same(full_state_dict(*run.sharded, *run.net), values_of(*plain.net));
    run.step(1);
    plain.step(1);
    expect_same(full_state_dict(*run.sharded, *run.net), values_of(*plain.net));
    EXPECT_THAT(error_of([&] { save_checkpoint(path, {*run.sharded, *run.net}, "{", *world); }),
                AllOf(HasSubstr("not a JSON text"), HasSubstr("rank 0")));
  });
}

TEST_F(PublicCheckpoints, NamesAreMappedAndMisfitsReported) {
  run_ranks(2, [&](const World& world) {
    save(world);
    Outer outer(seeded([] { return Net(); }, 99));
    outer->net->register_parameter("fresh", torch::ones({3}, at::kDouble));
    Options options = options_of({2, kFullShard, true, false}, world);
    auto sharded = fully_shard(*outer, options);
    const auto optimizer = make_adamw(sharded->named_parameters(), false);
    const auto state = state_of(*optimizer);
    const CheckpointedRun run{*sharded, *outer, state.get()};
    EXPECT_THAT(error_of([&] { load_checkpoint(path, run, *world); }),
                AllOf(HasSubstr("missing: net.fresh"), HasSubstr("missing: net.b.bias"),
                      HasSubstr("unexpected: b.bias"), HasSubstr(path.string())));
    const LoadedCheckpoint loaded =
        load_checkpoint(path, run, *world, {.strict = false, .rename = replace_prefix("", "net.")});
    EXPECT_THAT(loaded.model.missing, ElementsAre("net.fresh"));
    EXPECT_EQ(loaded.model.renamed.at("net.norm.running_mean"), "norm.running_mean");
    EXPECT_THAT(loaded.optimizer.missing, ElementsAre("net.fresh"));
    // The checkpoint has two groups, the optimizer one.
    ASSERT_EQ(loaded.optimizer.mismatched.size(), 1u);
    EXPECT_EQ(loaded.optimizer.mismatched[0].name, "parameter group 0");
    PlainRun plain(true, false);
    plain.step(0);
    auto got = full_state_dict(*sharded, *outer);
    EXPECT_TRUE(same_bits(got.at("net.fresh"), torch::ones({3}, at::kDouble)));
    for (const auto& [name, value] : values_of(*plain.net))
      EXPECT_TRUE(same_bits(got.at("net." + name), value)) << name;
    const FullOptimizerState kept = full_optimizer_state(*sharded, *state);
    EXPECT_EQ(kept.state.at("net.b.bias").scalars.at("step"), 1);
    EXPECT_TRUE(same_bits(kept.state.at("net.b.bias").tensors.at("exp_avg"),
                          plain.state->leaf(plain.net->b->bias)->tensors.at("exp_avg")));
  });
}

// ---------------------------------------------------------------- parameters that are not sharded

struct WithTable {
  WithTable(const World& world, uint64_t seed) : net(seeded([] { return Net(); }, seed)) {
    Options options = options_of({2, kFullShard, true, false}, world);
    options.ignored_parameters = {net->b->bias};
    sharded = fully_shard(*net, options);
  }
  Net net;
  std::shared_ptr<ShardedModule> sharded;
};

TEST_F(PublicCheckpoints, ParametersThatAreNotShardedAreInThem) {
  run_ranks(2, [&](const World& world) {
    WithTable saved(world, 17), other(world, 99);
    save_checkpoint(path, {*saved.sharded, *saved.net}, "{}", *world);
    EXPECT_TRUE(load_checkpoint(path, {*other.sharded, *other.net}, *world).model.complete());
    expect_same(full_state_dict(*other.sharded, *other.net), full_state_dict(*saved.sharded, *saved.net));
    EXPECT_TRUE(same_bits(other.net->b->bias.detach(), saved.net->b->bias.detach()));
  });
}

TEST_F(PublicCheckpoints, ParametersOfSingleRanksMustBeDeclared) {
  run_ranks(2, [&](const World& world) {
    WithTable run(world, 17);
    const torch::Tensor table = run.net->b->bias.detach();
    table.add_(world->rank());
    const auto save = [&](std::map<std::string, at::Tensor> of_rank) {
      save_checkpoint(path, {*run.sharded, *run.net, nullptr, std::move(of_rank)}, "{}", *world);
    };
    EXPECT_THAT(error_of([&] { save({}); }),
                AllOf(HasSubstr("parameter 'b.bias'"), HasSubstr("rank 1 has other values"), HasSubstr("of_rank")));
    EXPECT_FALSE(std::filesystem::exists(path));
    save({{"b.bias", table}});
    WithTable other(world, 99);
    EXPECT_THAT(error_of([&] { load_checkpoint(path, {*other.sharded, *other.net}, *world); }),
                HasSubstr("missing: b.bias"));
    const auto loaded = load_checkpoint(path, {*other.sharded, *other.net, nullptr, {{"b.bias", {}}}}, *world);
    EXPECT_TRUE(same_bits(loaded.of_rank.at("b.bias"), table));
  });
}

}  // namespace
}  // namespace fsdp::state::checkpoint_test
