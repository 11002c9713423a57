// Saves during which the network fails.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "comm/testing/faulty_communicator.h"
#include "state/async_saver.h"
#include "state/testing/state_runs.h"
#include "support/faults/error_of.h"
#include "support/faults/faulty_file_system.h"
#include "support/files/temporary_folder.h"
#include "support/ranks/thread_ranks.h"

namespace fsdp::state::lost_exchange_test {
namespace {

namespace fs = std::filesystem;
using namespace testing;  // this project's namespace
using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr int kRanks = 2;
const ShardingCase kSharding{kRanks, ShardingStrategy::kFullShard, true, false};

class LostExchanges : public ::testing::TestWithParam<std::tuple<bool, int>> {
 protected:
  bool is_async() const { return std::get<0>(GetParam()); }
  int lost_rank() const { return std::get<1>(GetParam()); }

  void save(OneRank& run, const std::shared_ptr<Communicator>& world, int step) {
    if (!is_async()) {
      save_training_state(path, run.training_state(), {{"step", step}}, *world);
      return;
    }
    AsyncSaver saver(world);
    saver.save(path, run.training_state(), {{"step", step}});
    saver.finish();
  }
  // Saves step 1 while an exchange fails on one rank, which then leaves. Returns the errors of all ranks.
  std::string save_and_lose(int64_t exchange) {
    return error_of([&] {
      run_ranks(kRanks, [&](const std::shared_ptr<Communicator>& world) {
        OneRank run(kSharding, world, 17, true);
        std::vector<comm::Fault> faults;
        if (world->rank() == lost_rank()) faults.push_back({.index = exchange, .message = "cable pulled"});
        try {
          save(run, std::make_shared<comm::FaultyCommunicator>(world, faults), 1);
        } catch (...) {
          world->abort("this rank leaves");
          throw;
        }
      });
    });
  }

  // Rank 0 removes the temporary folder, but another rank may write its file into it at that moment: that rank cannot
  // know that rank 0 has left, and must not remove a folder that rank 0 may be about to rename.
  void remove_leftovers() const {
    for (const std::string& name : folder.names()) {
      if (lost_rank() == 0 && name.rfind(".it.tmp-", 0) == 0) fs::remove_all(folder.path() / name);
    }
  }

  UnsyncedFileSystem unsynced;
  const formats::FileSystemGuard guard{unsynced};
  const testing::TemporaryFolder folder;
  const fs::path path = folder.path() / "it";
};

// The old or the new checkpoint is in the folder, and nothing else. No rank waits forever. No rank reports success
// while another rank got an error before the new checkpoint was complete.
TEST_P(LostExchanges, LeaveACheckpoint) {
  run_ranks(kRanks, [&](const std::shared_ptr<Communicator>& world) {
    OneRank run(kSharding, world, 17, true);
    save_training_state(path, run.training_state(), {{"step", 0}}, *world);
  });
  int failures = 0;
  for (bool failed = true; failed; failures += failed ? 1 : 0) {
    SCOPED_TRACE(failures);
    ASSERT_LT(failures, 20);
    const std::string error = save_and_lose(failures);
    failed = error != "no error";
    EXPECT_THAT(error, AnyOf(HasSubstr("cable pulled"), HasSubstr("no error")));
    remove_leftovers();
    EXPECT_EQ(folder.names(), std::vector<std::string>{"it"});
    run_ranks(1, [&](const std::shared_ptr<Communicator>& world) {
      OneRank run({1, ShardingStrategy::kFullShard, true, false}, world, 99, true);
      const auto user = load_training_state(path, run.training_state(), *world);
      EXPECT_TRUE(failed || user.at("step") == 1);
    });
  }
  EXPECT_GT(failures, 2);
}
INSTANTIATE_TEST_SUITE_P(All, LostExchanges, ::testing::Combine(::testing::Bool(), ::testing::Values(0, 1)),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param) ? "async" : "sync") + "_rank" +
                                  std::to_string(std::get<1>(info.param));
                         });

}  // namespace
}  // namespace fsdp::state::lost_exchange_test
