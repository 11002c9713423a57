// Sharded training over a backend that checks nothing itself: diverging ranks are stopped and named, and late ranks are
// named.
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <mutex>

#include "comm/checked/checked_communicator.h"
#include "engine/engine.h"
#include "support/files/temporary_folder.h"
#include "support/nets/tiny_lm.h"
#include "support/nets/two_layers.h"
#include "support/ranks/thread_ranks.h"
#include "support/ranks/unchecked_communicator.h"
#include "support/training/sharding.h"

namespace fsdp {
namespace {

using ::testing::AllOf;
using testing::BlockImpl;
using testing::expect_error;
using ::testing::HasSubstr;
using testing::make_tiny_lm;
using ::testing::Not;
using testing::run_ranks;
using testing::run_unchecked_ranks;

using Group = std::shared_ptr<Communicator>;

Options options_for(const Group& communicator, CollectiveCheckLevel level = CollectiveCheckLevel::kSampled) {
  Options options;
  options.communicator = communicator;
  options.auto_wrap_policy = testing::every_module();
  options.debug.collective_check.level = level;
  return options;
}

// Returns the errors of all ranks.
std::vector<std::string> errors_of(int ranks, const std::function<void(const Group&)>& body) {
  std::vector<std::string> errors(static_cast<size_t>(ranks));
  run_unchecked_ranks(ranks, [&](const Group& communicator) {
    try {
      body(communicator);
    } catch (const std::exception& error) {
      errors[static_cast<size_t>(communicator->rank())] = error.what();
    }
  });
  return errors;
}

// Two experts with weights of 1 and of 2.
struct ConstantExpertsImpl : testing::ExpertsImpl {
  ConstantExpertsImpl() : ExpertsImpl(/*bias=*/false) {
    torch::NoGradGuard no_grad;
    a->weight.fill_(1);
    b->weight.fill_(2);
  }
};

void swap_experts(const Group& communicator, CollectiveCheckLevel level, double* result = nullptr) {
  ConstantExpertsImpl net;
  auto sharded = testing::shard_strictly(net, options_for(communicator, level));
  sharded->diagnostics().verify_sharding();
  const bool odd = communicator->rank() == communicator->size() - 1;
  const torch::Tensor y = (odd ? net.b : net.a)(torch::ones({1, 4}));
  if (result) *result = y.sum().item<double>();
}

TEST(Divergence, ASwapOfEqualShapesStopsAllRanks) {
  for (int ranks : {2, 3, 4}) {
    const auto errors =
        errors_of(ranks, [](const Group& communicator) { swap_experts(communicator, CollectiveCheckLevel::kSampled); });
    for (const std::string& error : errors) {
      EXPECT_THAT(error, AllOf(HasSubstr(c10::str("rank ", ranks - 1, " issued all-gather of 'b' (forward")),
                               HasSubstr("where rank 0 issued all-gather of 'a' (forward")));
    }
  }
}

// The reason for the check: without it, rank 1 computes with one half of the other expert's weights.
TEST(Divergence, WithoutChecksMixesParameters) {
  const auto errors = errors_of(2, [](const Group& communicator) {
    double result = 0;
    swap_experts(communicator, CollectiveCheckLevel::kOff, &result);
    EXPECT_EQ(result, 24);  // correct would be 16 on rank 0 and 32 on rank 1
  });
  EXPECT_EQ(errors[0] + errors[1], "");
}

TEST(Divergence, ASkippedLayerStopsAllRanks) {
  const auto errors = errors_of(3, [](const Group& communicator) {
    ConstantExpertsImpl net;
    auto sharded = testing::shard_strictly(net, options_for(communicator));
    const torch::Tensor x = torch::ones({1, 4});
    net.b(communicator->rank() == 1 ? x : net.a(x)).sum().backward();
  });
  for (const std::string& error : errors) {
    EXPECT_THAT(error, AllOf(HasSubstr("rank 1 issued"), HasSubstr("'a'"), HasSubstr("'b'")));
  }
}

// Reductions go through the twin. The first data compared is what the ranks report at the end of backward. Reductions
// follow the order of first uses, and no gather here would reveal that the orders differ.
TEST(Divergence, AReductionOfAnotherUnitStopsAllRanks) {
  const auto errors = errors_of(2, [](const Group& communicator) {
    ConstantExpertsImpl net;
    Options options = options_for(communicator);
    options.sharding_strategy = ShardingStrategy::kShardGradOp;  // nothing is gathered in backward
    auto sharded = fully_shard(net, options);
    sharded->unshard();
    const torch::Tensor x = torch::ones({1, 4});
    const bool other_way_round = communicator->rank() == 1;
    const torch::Tensor first = (other_way_round ? net.b : net.a)(x), second = (other_way_round ? net.a : net.b)(x);
    (first + second).sum().backward();
  });
  for (const std::string& error : errors) {
    EXPECT_THAT(error, AllOf(HasSubstr("rank 1 issued"), HasSubstr("'a'"), HasSubstr("'b'"), HasSubstr("(reduce")));
  }
}

TEST(Divergence, InOneShardGroupStopsTheOther) {
  const auto errors = errors_of(4, [](const Group& world) {
    ConstantExpertsImpl net;
    Options options = options_for(world);
    options.mesh = make_mesh(world, 2);
    options.sharding_strategy = ShardingStrategy::kHybridShard;
    auto sharded = fully_shard(net, options);
    const torch::Tensor x = torch::ones({1, 4});
    (world->rank() == 3 ? net.b(net.a(x)) : net.a(net.b(x))).sum().backward();
  });
  for (const std::string& error : errors) {
    EXPECT_THAT(error, AllOf(HasSubstr("rank 3 issued"), HasSubstr("rank 2 issued")));
  }
}

// ---- healthy runs

// Returns the losses of `steps` steps of gradient descent on the concatenated batches, in one process.
std::vector<double> losses_alone(int ranks, int steps) {
  auto model = make_tiny_lm({});
  std::vector<double> losses;
  for (int step = 0; step < steps; ++step) {
    model->zero_grad();
    torch::Tensor loss = torch::zeros({});
    for (int rank = 0; rank < ranks; ++rank) loss = loss + model->loss(testing::batch_of(rank, step)) / ranks;
    loss.backward();
    losses.push_back(loss.item<double>());
    testing::descend(model->parameters());
  }
  return losses;
}

class CheckedTraining : public ::testing::TestWithParam<std::tuple<CollectiveCheckLevel, ShardingStrategy, int>> {};
INSTANTIATE_TEST_SUITE_P(
    All, CheckedTraining,
    ::testing::Combine(::testing::Values(CollectiveCheckLevel::kSampled, CollectiveCheckLevel::kAlways),
                       ::testing::Values(ShardingStrategy::kFullShard, ShardingStrategy::kHybridShard,
                                         ShardingStrategy::kNoShard),
                       ::testing::Values(2, 3, 4)),
    [](const auto& info) {
      return c10::str(to_string(std::get<0>(info.param)), "_", to_string(std::get<1>(info.param)), "_",
                      std::get<2>(info.param));
    });

TEST_P(CheckedTraining, EqualsOneProcess) {
  const auto [level, strategy, ranks] = GetParam();
  constexpr int kSteps = 5;
  const std::vector<double> expected = losses_alone(ranks, kSteps);
  std::vector<double> losses(kSteps);
  std::mutex mutex;
  run_unchecked_ranks(ranks, [&, level = level, strategy = strategy, ranks = ranks](const Group& world) {
    auto model = make_tiny_lm({});
    Options options = options_for(world, level);
    options.debug.collective_check.first_steps = 1;
    options.debug.collective_check.every = 3;
    options.sharding_strategy = strategy;
    options.auto_wrap_policy = module_class_policy<BlockImpl>();
    if (is_hybrid(strategy)) options.mesh = make_mesh(world, ranks == 3 ? 3 : 2);
    auto sharded = fully_shard(*model, options);
    for (int step = 0; step < kSteps; ++step) {
      sharded->zero_grad();
      torch::Tensor loss = model->loss(testing::batch_of(world->rank(), step));
      loss.backward();
      {
        std::lock_guard lock(mutex);
        losses[static_cast<size_t>(step)] += loss.item<double>() / ranks;
      }
      testing::descend(sharded->parameters());
    }
    EXPECT_EQ(comm::CheckedCommunicator::monitor_over(*world)->step(), kSteps);
  });
  for (int step = 0; step < kSteps; ++step) {
    EXPECT_NEAR(losses[static_cast<size_t>(step)], expected[static_cast<size_t>(step)], 1e-5) << step;
  }
}

// Only a backward that communicates counts as a step.
TEST(CollectiveSteps, AreBackwardPassesThatReduce) {
  run_ranks(2, [](const Group& communicator) {
    ConstantExpertsImpl net;
    auto sharded = fully_shard(net, options_for(communicator));
    const torch::Tensor x = torch::ones({1, 4});
    const auto step = [&] { return comm::CheckedCommunicator::monitor_over(*communicator)->step(); };
    (void)net.a(x);
    EXPECT_EQ(step(), 0);
    {
      auto no_sync = sharded->no_sync();
      net.b(net.a(x)).sum().backward();
    }
    EXPECT_EQ(step(), 0);
    net.b(net.a(x)).sum().backward();
    EXPECT_EQ(step(), 1);
  });
}

// ---- the log, the dump, the watchdog

TEST(CollectiveLog, HasTheLastCollectives) {
  run_ranks(2, [](const Group& communicator) {
    ConstantExpertsImpl net;
    auto sharded = fully_shard(net, options_for(communicator));
    net.b(net.a(torch::ones({1, 4}))).sum().backward();
    const std::string log = sharded->diagnostics().collective_log();
    const std::string rank = c10::str("rank ", communicator->rank(), ", #");
    EXPECT_THAT(log,
                AllOf(HasSubstr(rank), HasSubstr("all-gather of 'a' (forward"), HasSubstr("all-gather of 'b' (forward"),
                      HasSubstr("reduce-scatter of 'a' (reduce"), HasSubstr("in group 'world, twin'")));
    EXPECT_THAT(log, Not(HasSubstr("failed")));
  });
}

// Gloo detects the difference itself. The dump contains the record of collectives.
TEST(CollectiveLog, IsDumpedWhenACollectiveFails) {
  const testing::TemporaryFolder folder;
  std::vector<std::string> errors(2);
  run_ranks(2, [&](const Group& communicator) {
    ConstantExpertsImpl net;
    Options options = options_for(communicator);
    options.debug.dump_folder = folder.path();
    auto sharded = testing::shard_strictly(net, options);
    try {
      (void)(communicator->rank() == 0 ? net.a : net.b)(torch::ones({1, 4}));
    } catch (const std::exception& error) {
      errors[static_cast<size_t>(communicator->rank())] = error.what();
    }
  });
  for (int rank = 0; rank < 2; ++rank) {
    const std::string path = folder.path(c10::str("collectives_rank", rank, ".txt"));
    EXPECT_THAT(errors[static_cast<size_t>(rank)], HasSubstr(path));
    EXPECT_THAT(folder.read(c10::str("collectives_rank", rank, ".txt")),
                AllOf(HasSubstr(rank == 0 ? "all-gather of 'a'" : "all-gather of 'b'"), HasSubstr("failed")));
  }
}

// The lines that watchdogs log, possibly after the ranks have ended.
struct Said {
  std::mutex mutex;
  std::condition_variable changed;
  std::string lines;

  void add(const std::string& line) {
    std::lock_guard lock(mutex);
    lines += line + "\n";
    changed.notify_all();
  }
  // Times out after longer than any machine needs.
  bool wait_for(const std::string& part) {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, std::chrono::seconds(20), [&] { return lines.find(part) != std::string::npos; });
  }
};

TEST(Watching, NamesTheLateRankUnitAndPass) {
  const auto said = std::make_shared<Said>();
  run_ranks(3, [&](const Group& communicator) {
    ConstantExpertsImpl net;
    Options options = options_for(communicator);
    options.debug.watchdog_warning = std::chrono::milliseconds(100);
    options.debug.log = [said](const std::string& line) { said->add(line); };
    auto sharded = testing::shard_strictly(net, options);
    torch::Tensor loss = net.b(net.a(torch::ones({1, 4})).relu()).square().sum();
    if (communicator->rank() == 2) {
      EXPECT_TRUE(said->wait_for("rank 2 is late"));
    }
    loss.backward();
  });
  std::lock_guard lock(said->mutex);
  EXPECT_THAT(said->lines, AllOf(HasSubstr("rank 0 has waited"), HasSubstr("all-gather of 'b' (backward"),
                                 HasSubstr("rank 2 is late; its last collective: rank 2, #"),
                                 HasSubstr("all-gather of 'b' (forward"), Not(HasSubstr("rank 1 is late"))));
}

TEST(DebugOptionsOfOneTree, MustAgree) {
  ConstantExpertsImpl net;
  Options options = testing::one_rank_options();
  fully_shard(*net.a, options);
  options.debug.collective_check.every = 7;
  expect_error([&] { fully_shard(net, options); }, {"debug.collective_check", "same for all"});
}

}  // namespace
}  // namespace fsdp
