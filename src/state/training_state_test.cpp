// State saved by some ranks and loaded by others: weights, optimizer state and later steps are bitwise equal.
#include "state/training_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "formats/common/checksum.h"
#include "fsdp/fsdp.h"
#include "state/testing/state_runs.h"
#include "support/faults/error_of.h"
#include "support/faults/faulty_file_system.h"
#include "support/files/temporary_folder.h"
#include "support/ranks/thread_ranks.h"
#include "support/training/one_process.h"

namespace fsdp::state::training_state_test {
namespace {

namespace fs = std::filesystem;
using namespace testing;  // this project's namespace
using ::testing::AllOf;
using ::testing::HasSubstr;

std::vector<ShardingCase> some_cases() {
  using enum ShardingStrategy;
  return {{1, kFullShard, true, false},
          {2, kFullShard, false, false},
          {3, kShardGradOp, true, false},
          {4, kHybridShard, true, false},
          {2, kNoShard, true, false},
          {4, kFullShard, false, false},
          {8, kFullShard, true, false},
          {4, kHybridShardZero2, false, false},
          {3, kFullShard, true, false, /*automatic=*/true},
          {3, kFullShard, true, false, /*automatic=*/false, ShardCut::kRows},
          {2, kFullShard, false, false, /*automatic=*/false, ShardCut::kRows}};
}

// Returns two cases other than `sharding`.
std::vector<ShardingCase> others_than(const ShardingCase& sharding) {
  const std::vector<ShardingCase> all = some_cases();
  size_t at = 0;
  while (name_of(all[at]) != name_of(sharding)) ++at;
  std::vector<ShardingCase> others;
  for (size_t further : {1, 3}) others.push_back(all[(at + further) % all.size()]);
  return others;
}

class Resharding : public ::testing::TestWithParam<std::tuple<ShardingCase, bool>> {};
INSTANTIATE_TEST_SUITE_P(All, Resharding, ::testing::Combine(::testing::ValuesIn(some_cases()), ::testing::Bool()),
                         [](const auto& info) {
                           return name_of(std::get<0>(info.param)) + (std::get<1>(info.param) ? "_fused" : "_torch");
                         });

// The contents of a checkpoint do not depend on the ranks that saved it: it is loaded and saved again by other ranks,
// and then by the first ones again.
TEST_P(Resharding, KeepsEveryBit) {
  const auto& [sharding, fused] = GetParam();
  UnsyncedFileSystem unsynced;
  const formats::FileSystemGuard guard(unsynced);
  const testing::TemporaryFolder folder;
  const fs::path first = folder.path() / "first", second = folder.path() / "second";
  std::map<std::string, torch::Tensor> want, next;
  run_ranks(sharding.world_size, [&, fused = fused, sharding = sharding](const std::shared_ptr<Communicator>& world) {
    OneRank run(sharding, world, 17, fused);
    run.step(0);
    run.step(1);
    save_training_state(first, run.training_state(), {{"step", 2}}, *world);
    auto here = run.everything();
    if (world->rank() == 0) want = here;
    run.step(2);
    here = run.everything();
    if (world->rank() == 0) next = here;
  });
  for (const ShardingCase& other : others_than(sharding)) {
    SCOPED_TRACE(name_of(other));
    run_ranks(other.world_size, [&, fused = fused](const std::shared_ptr<Communicator>& world) {
      OneRank run(other, world, 99, fused);
      EXPECT_EQ(load_training_state(first, run.training_state(), *world), (nlohmann::json{{"step", 2}}));
      expect_same(run.everything(), want);
      save_training_state(second, run.training_state(), {{"step", 2}}, *world);
    });
    run_ranks(sharding.world_size, [&, fused = fused, sharding = sharding](const std::shared_ptr<Communicator>& world) {
      OneRank run(sharding, world, 5, fused);
      load_training_state(second, run.training_state(), *world);
      expect_same(run.everything(), want);
      run.step(2);
      expect_same(run.everything(), next);
    });
  }
}

// Counts the bytes that a thread, that is, a rank, reads.
class CountedReads final : public formats::FileSystem {
 public:
  ssize_t pread(int file, void* data, size_t size, off_t offset) override {
    const ssize_t done = FileSystem::pread(file, data, size, offset);
    bytes += std::max<ssize_t>(done, 0);
    return done;
  }
  static inline thread_local int64_t bytes = 0;
};

TEST(Loading, ReadsNoMoreThanTheRankHolds) {
  constexpr int64_t kBlock = formats::kChecksumBlock, kTensor = 4 * kBlock;
  CountedReads counted;
  const formats::FileSystemGuard guard(counted);
  const testing::TemporaryFolder folder;
  for (const int ranks : {1, 4}) {
    run_ranks(ranks, [&](const std::shared_ptr<Communicator>& world) {
      torch::nn::Sequential net(torch::nn::Linear(torch::nn::LinearOptions(1024, 1024).bias(false)),
                                torch::nn::Linear(torch::nn::LinearOptions(1024, 1024).bias(false)));
      Options options;
      options.communicator = world;
      const auto sharded = fully_shard(*net, options);
      if (ranks == 1) {
        save_training_state(folder.path() / "it", {{{*sharded, *net}}}, {}, *world);
        return;
      }
      CountedReads::bytes = 0;
      load_training_state(folder.path() / "it", {{{*sharded, *net}}}, *world);
      // Both tensors are one row of elements, divided into four parts; at the ends of its part a rank reads and checks
      // a whole block. It also reads the manifest and the header.
      EXPECT_GE(CountedReads::bytes, 2 * kTensor / 4);
      EXPECT_LE(CountedReads::bytes, 2 * kTensor / 4 + 2 * kBlock + (int64_t{64} << 10));
    });
  }
}

// ---------------------------------------------------------------- what goes wrong

TEST(Saving, EveryFaultIsAnErrorOnAllRanksAndTheOldOneStays) {
  const ShardingCase sharding{2, ShardingStrategy::kFullShard, true, false};
  const testing::TemporaryFolder folder;
  const fs::path path = folder.path() / "checkpoint";
  run_ranks(2, [&](const std::shared_ptr<Communicator>& world) {
    OneRank run(sharding, world, 17, true);
    run.step(0);
    save_training_state(path, run.training_state(), {{"step", 1}}, *world);
  });
  int64_t calls = 40;
  for (int64_t call = 1; call <= calls; ++call) {
    SCOPED_TRACE(call);
    FaultyFileSystem faulty({.error = ENOSPC, .first = call});
    std::atomic<int> failed{0};
    run_ranks(2, [&](const std::shared_ptr<Communicator>& world) {
      OneRank run(sharding, world, 17, true);
      run.step(0);
      run.step(1);
      world->barrier({"begin", 0, Pass::kUser});
      {
        const std::string error = [&] {
          static std::unique_ptr<formats::FileSystemGuard> guard;
          if (world->rank() == 0) guard = std::make_unique<formats::FileSystemGuard>(faulty);
          world->barrier({"guarded", 0, Pass::kUser});
          std::string text = error_of([&] { save_training_state(path, run.training_state(), {{"step", 2}}, *world); });
          world->barrier({"saved", 0, Pass::kUser});
          if (world->rank() == 0) guard.reset();
          return text;
        }();
        if (error != "no error") {
          ++failed;
          EXPECT_THAT(error, AllOf(HasSubstr("No space left on device"), HasSubstr("rank "), HasSubstr("checkpoint")));
        }
      }
      run.step(2);  // training continues
      world->barrier({"over", 0, Pass::kUser});
      OneRank other(sharding, world, 3, true);
      const auto user = load_training_state(path, other.training_state(), *world);
      EXPECT_TRUE(user.at("step") == 1 || user.at("step") == 2) << user;
    });
    EXPECT_TRUE(failed == 0 || failed == 2);
    if (call > faulty.calls()) {
      EXPECT_EQ(failed, 0);
      break;
    }
  }
}

TEST(Loading, NamesMisfits) {
  const ShardingCase sharding{2, ShardingStrategy::kFullShard, true, false};
  const testing::TemporaryFolder folder;
  run_ranks(2, [&](const std::shared_ptr<Communicator>& world) {
    OneRank run(sharding, world, 17, true);
    save_training_state(folder.path() / "it", run.training_state(), {}, *world);
    torch::nn::Linear linear(4, 7);
    auto sharded = fully_shard(linear, options_of(sharding, world));
    const std::string error =
        error_of([&] { load_training_state(folder.path() / "it", {{{*sharded, *linear}}}, *world); });
    EXPECT_THAT(error, AllOf(HasSubstr("does not fit this model"), HasSubstr("missing: weight"),
                             HasSubstr("missing: bias"), HasSubstr("unexpected: a.bias")));
    EXPECT_THAT(error_of([&] { load_training_state(folder.path() / "none", run.training_state(), *world); }),
                AllOf(HasSubstr("none"), HasSubstr("no manifest.json")));
  });
}

}  // namespace
}  // namespace fsdp::state::training_state_test
