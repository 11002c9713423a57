// Saves while training continues: their contents, and their outcome after failures.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <condition_variable>
#include <mutex>

#include "fsdp/fsdp.h"
#include "state/async_saver.h"
#include "support/devices/test_device.h"
#include "support/faults/error_of.h"
#include "support/faults/faulty_file_system.h"
#include "support/files/temporary_folder.h"
#include "support/ranks/thread_ranks.h"

namespace fsdp::state::async_save_test {
namespace {

namespace fs = std::filesystem;
using namespace testing;  // this project's namespace
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// A file system that blocks writes until its gate is opened.
class GatedFileSystem final : public formats::FileSystem {
 public:
  ssize_t pwrite(int file, const void* data, size_t size, off_t offset) override {
    std::unique_lock lock(mutex_);
    opened_.wait(lock, [&] { return is_open_; });
    return FileSystem::pwrite(file, data, size, offset);
  }
  void open_gate() {
    const std::lock_guard lock(mutex_);
    is_open_ = true;
    opened_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable opened_;
  bool is_open_ = false;
};

struct OneRank {
  explicit OneRank(const std::shared_ptr<Communicator>& world) {
    const std::lock_guard lock(seeds());
    torch::manual_seed(3);
    net = torch::nn::Linear(5, 7);
    Options options;
    options.communicator = world;
    options.device = test_device();
    rank = world->rank();
    sharded = fully_shard(*net, options);
    adam = std::make_unique<torch::optim::Adam>(sharded->parameters(), torch::optim::AdamOptions(0.1));
    state = state_of(*adam);
  }
  void step() {
    sharded->zero_grad();
    net->forward(torch::ones({2, 5}, test_device())).pow(2).mean().backward();
    adam->step();
  }
  TrainingState training_state() { return {{{*sharded, *net}}, state.get(), {{"random", at::full({3}, rank)}}}; }
  std::string everything() {
    std::ostringstream text;
    text.precision(17);
    sharded->for_each_full_parameter(
        [&](const std::string& name, const at::Tensor& full) { text << name << full.cpu().to(at::kDouble); });
    return text.str();
  }
  static std::mutex& seeds() {
    static std::mutex mutex;
    return mutex;
  }

  int rank = 0;
  torch::nn::Linear net{nullptr};
  std::shared_ptr<ShardedModule> sharded;
  std::unique_ptr<torch::optim::Adam> adam;
  std::unique_ptr<OptimizerState> state;
};

class AsyncSavesOverRanks : public ::testing::TestWithParam<int> {};

TEST_P(AsyncSavesOverRanks, HoldTheStateOfTheirBeginning) {
  const testing::TemporaryFolder folder;
  const fs::path path = folder.path() / "it";
  GatedFileSystem gated;
  const formats::FileSystemGuard guard(gated);
  run_ranks(GetParam(), [&](const std::shared_ptr<Communicator>& world) {
    OneRank run(world);
    run.step();
    const std::string want = run.everything();
    AsyncSaver saver(world);
    saver.save(path, run.training_state(), {{"step", 1}});
    for (int i = 0; i < 3; ++i) {
      run.step();
      EXPECT_EQ(saver.advance(), std::nullopt);
    }
    EXPECT_FALSE(fs::exists(path));
    EXPECT_NE(run.everything(), want);
    world->barrier({"looked", 0, Pass::kUser});
    gated.open_gate();
    EXPECT_EQ(saver.finish(), path);
    EXPECT_FALSE(saver.is_saving());
    OneRank other(world);
    const LoadedTrainingState loaded = load_training_state(path, other.training_state(), *world, LoadOptions());
    EXPECT_EQ(loaded.user, (nlohmann::json{{"step", 1}}));
    EXPECT_EQ(other.everything(), want);
    ASSERT_EQ(loaded.of_rank.size(), 1U);
    EXPECT_TRUE(loaded.of_rank.at("random").equal(at::full({3}, world->rank())));
  });
  run_ranks(GetParam() + 1, [&](const std::shared_ptr<Communicator>& world) {
    OneRank run(world);
    EXPECT_THAT(load_training_state(path, run.training_state(), *world, LoadOptions()).of_rank, IsEmpty());
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, AsyncSavesOverRanks, ::testing::Values(1, 2, 3));

TEST(AsyncSaves, AdvanceByThemselves) {
  const testing::TemporaryFolder folder;
  run_ranks(2, [&](const std::shared_ptr<Communicator>& world) {
    OneRank run(world);
    AsyncSaver saver(world);
    saver.save(folder.path() / "it", run.training_state(), {});
    std::optional<fs::path> ended;
    while (!ended) ended = saver.advance();
    EXPECT_EQ(ended, folder.path() / "it");
    EXPECT_TRUE(fs::exists(folder.path() / "it" / "manifest.json"));
    EXPECT_EQ(saver.advance(), std::nullopt);
  });
}

TEST(AsyncSaves, ASecondOneWaitsOrIsRefused) {
  const testing::TemporaryFolder folder;
  const fs::path first = folder.path() / "first", second = folder.path() / "second";
  for (SecondSave policy : {SecondSave::kWait, SecondSave::kRefuse}) {
    GatedFileSystem gated;
    const formats::FileSystemGuard guard(gated);
    run_ranks(2, [&](const std::shared_ptr<Communicator>& world) {
      OneRank run(world);
      AsyncSaver saver(world, policy);
      saver.save(first, run.training_state(), {});
      if (policy == SecondSave::kRefuse) {
        EXPECT_THAT(error_of([&] { saver.save(second, run.training_state(), {}); }),
                    AllOf(HasSubstr("second is not saved"), HasSubstr("first is still being saved")));
      }
      world->barrier({"refused", 0, Pass::kUser});
      gated.open_gate();
      if (policy == SecondSave::kWait) saver.save(second, run.training_state(), {});
      EXPECT_EQ(saver.finish(), policy == SecondSave::kWait ? second : first);
    });
    EXPECT_TRUE(fs::exists(first / "manifest.json"));
    EXPECT_EQ(fs::exists(second / "manifest.json"), policy == SecondSave::kWait);
    fs::remove_all(first);
    fs::remove_all(second);
  }
}

TEST(AsyncSaves, EveryFaultIsAnErrorOnAllRanksAndTheOldOneStays) {
  const testing::TemporaryFolder folder;
  const fs::path path = folder.path() / "it";
  run_ranks(2, [&](const std::shared_ptr<Communicator>& world) {
    OneRank run(world);
    save_training_state(path, run.training_state(), {{"step", 0}}, *world);
  });
  bool struck = true;
  for (int64_t call = 1; struck; ++call) {
    SCOPED_TRACE(call);
    ASSERT_LT(call, 100);
    FaultyFileSystem faulty({.error = ENOSPC, .first = call});
    std::atomic<int> failed{0};
    {
      const formats::FileSystemGuard guard(faulty);
      run_ranks(2, [&](const std::shared_ptr<Communicator>& world) {
        OneRank run(world);
        AsyncSaver saver(world);
        const std::string error = error_of([&] {
          saver.save(path, run.training_state(), {{"step", 1}});
          while (saver.is_saving()) saver.advance();
        });
        if (error == "no error") return;
        ++failed;
        EXPECT_THAT(error, AllOf(HasSubstr("No space left on device"), HasSubstr("rank "), HasSubstr("it failed")));
        EXPECT_FALSE(saver.is_saving());
        run.step();  // training continues
        world->barrier({"over", 0, Pass::kUser});
      });
    }
    struck = call <= faulty.calls();
    EXPECT_TRUE(failed == 0 || failed == 2);
    EXPECT_TRUE(struck || failed == 0);
    EXPECT_THAT(folder.names(), ::testing::ElementsAre("it"));
    run_ranks(2, [&](const std::shared_ptr<Communicator>& world) {
      OneRank run(world);
      const auto user = load_training_state(path, run.training_state(), *world);
      EXPECT_TRUE(user.at("step") == 0 || user.at("step") == 1) << user;
    });
  }
}

TEST(AsyncSaves, AreGivenUpWithNothingLeft) {
  const testing::TemporaryFolder folder;
  run_ranks(1, [&](const std::shared_ptr<Communicator>& world) {
    OneRank run(world);
    AsyncSaver saver(world);
    saver.save(folder.path() / "it", run.training_state(), {});
    EXPECT_THAT(folder.names(), Not(IsEmpty()));
  });
  EXPECT_THAT(folder.names(), IsEmpty());
}

}  // namespace
}  // namespace fsdp::state::async_save_test
