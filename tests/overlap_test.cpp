// Tests prefetching: which gathers are issued ahead, when and how many, and that a wrong prediction does not change
// results.
#include "comm/testing/recording_communicator.h"
#include "engine/engine.h"
#include "support/nets/row.h"
#include "support/ranks/thread_ranks.h"
#include "support/training/sharding.h"

namespace fsdp {
namespace {

using testing::expect_same;
using testing::kInOrder;
using testing::kRowDepth;
using testing::make_row;
using testing::Row;
using testing::row_input;
using testing::row_options;
using testing::row_step;
using testing::run_ranks;
using testing::weights_of;

// Returns the log of collectives: "g2" if the gather of unit l2 is issued, "w2" if it is waited for, "r2" if the
// reduction of l2 is issued.
std::string log_of(const comm::RecordingCommunicator& communicator) {
  std::string log;
  for (const comm::CollectiveEvent& event : communicator.events()) {
    bool reduce = event.kind == comm::CollectiveKind::kReduceScatter;
    if (event.id.name == "root" || event.kind == comm::CollectiveKind::kGatherBytes ||
        (reduce && event.what == comm::CollectiveEvent::What::kWait))
      continue;
    const char* what = reduce ? "r" : event.what == comm::CollectiveEvent::What::kIssue ? "g" : "w";
    log += (log.empty() ? "" : " ") + std::string(what) + event.id.name.substr(1);
  }
  return log;
}

// Returns the log of the second step on rank 0.
std::string log_of_second_step(const std::function<void(Options&)>& configure) {
  std::string log;
  run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    auto recording = std::make_shared<comm::RecordingCommunicator>(communicator);
    Row row = make_row();
    Options options = row_options(recording);
    configure(options);
    auto sharded = fully_shard(row, options);
    row_step(row, *sharded, recording->rank());
    recording->clear();
    row_step(row, *sharded, recording->rank());
    if (recording->rank() == 0) log = log_of(*recording);
  });
  return log;
}

const std::string kForward = "g0 g1 w0 g2 w1 g3 w2 g4 w3 w4 ";

TEST(Prefetch, ForwardAndBackwardByDefault) {
  EXPECT_EQ(log_of_second_step([](Options&) {}), kForward + "g3 r4 g2 w3 r3 g1 w2 r2 g0 w1 r1 w0 r0");
}

TEST(Prefetch, BackwardPost) {
  auto configure = [](Options& options) { options.backward_prefetch = BackwardPrefetch::kPost; };
  EXPECT_EQ(log_of_second_step(configure), kForward + "g3 r4 w3 g2 r3 w2 g1 r2 w1 g0 r1 w0 r0");
}

TEST(Prefetch, None) {
  auto configure = [](Options& options) {
    options.forward_prefetch = false;
    options.backward_prefetch = BackwardPrefetch::kNone;
  };
  EXPECT_EQ(log_of_second_step(configure), "g0 w0 g1 w1 g2 w2 g3 w3 g4 w4 r4 g3 w3 r3 g2 w2 r2 g1 w1 r1 g0 w0 r0");
}

// No gather waits until the unit in use is released: all are issued as soon as they are predicted.
TEST(Prefetch, Unlimited) {
  auto configure = [](Options& options) { options.limit_all_gathers = false; };
  EXPECT_EQ(log_of_second_step(configure), "g0 g1 g2 g3 g4 w0 w1 w2 w3 w4 g3 g2 g1 g0 r4 w3 r3 w2 r2 w1 r1 w0 r0");
}

// With one communicator, a gather waits for the reductions that were issued before it (the paper's figure 6b). As the
// logs above show, BACKWARD_PRE issues the next gather before the reduction of the current unit; without prefetching,
// it is issued after that reduction. With two communicators, this order does not matter.
TEST(Prefetch, ReductionsHaveACommunicatorOfTheirOwn) {
  for (bool one : {false, true}) {
    run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
      auto recording = std::make_shared<comm::RecordingCommunicator>(communicator);
      Row row = make_row();
      Options options = row_options(recording);
      options.one_communicator = one;
      auto sharded = fully_shard(row, options);
      row_step(row, *sharded, recording->rank());
      for (const comm::CollectiveEvent& event : recording->events()) {
        EXPECT_EQ(event.twin, !one && event.kind == comm::CollectiveKind::kReduceScatter) << comm::to_string(event);
      }
    });
  }
}

// Steps with changing orders of layers give the same weights with and without prefetching.
TEST(Prefetch, AChangedOrderCostsTimeOnly) {
  const std::vector<std::vector<int>> orders = {
      kInOrder, kInOrder, {4, 3, 2, 1, 0}, {0, 2, 4}, {1, 1, 3, 1}, {0, 1, 2, 3, 4}, {}, {2}, kInOrder, kInOrder};
  for (ShardingStrategy strategy :
       {ShardingStrategy::kFullShard, ShardingStrategy::kShardGradOp, ShardingStrategy::kNoShard}) {
    for (int ranks : {1, 2, 3, 4, 8}) {
      std::vector<std::map<std::string, torch::Tensor>> weights(2);
      for (bool ahead : {false, true}) {
        run_ranks(ranks, [&](std::shared_ptr<Communicator> communicator) {
          Row row = make_row();
          Options options = row_options(communicator);
          options.sharding_strategy = strategy;
          options.forward_prefetch = ahead;
          options.backward_prefetch = ahead ? BackwardPrefetch::kPre : BackwardPrefetch::kNone;
          auto sharded = fully_shard(row, options);
          for (const std::vector<int>& order : orders) row_step(row, *sharded, communicator->rank(), order);
          EngineStats stats = sharded->diagnostics().stats();
          EXPECT_EQ(stats.prefetches > 0, ahead && ranks > 1 && strategy != ShardingStrategy::kNoShard);
          EXPECT_EQ(stats.gathered_units, 0);
          auto got = weights_of(*sharded);
          if (communicator->rank() == 0) weights[ahead] = got;
        });
      }
      expect_same(weights[1], weights[0]);
    }
  }
}

// Prefetched units that the step does not use are released unused.
TEST(Prefetch, CountsWastedGathers) {
  run_ranks(2, [](std::shared_ptr<Communicator> communicator) {
    Row row = make_row();
    auto sharded = fully_shard(row, row_options(communicator));
    for (int i = 0; i < 3; ++i) row_step(row, *sharded, communicator->rank());
    EXPECT_EQ(sharded->diagnostics().stats().prefetches_wasted, 0);
    row_step(row, *sharded, communicator->rank(), {3, 0});
    EXPECT_GT(sharded->diagnostics().stats().prefetches_wasted, 0);
  });
}

TEST(Prefetch, EvaluationBetweenStepsIsLearned) {
  run_ranks(2, [](std::shared_ptr<Communicator> communicator) {
    Row row = make_row();
    auto sharded = fully_shard(row, row_options(communicator));
    auto round = [&] {
      row_step(row, *sharded, communicator->rank());
      torch::NoGradGuard no_grad;
      row->forward(row_input(0), kInOrder);
      row->forward(row_input(1), {0, 1});
    };
    for (int i = 0; i < 3; ++i) round();
    EngineStats before = sharded->diagnostics().stats();
    round();
    EngineStats after = sharded->diagnostics().stats();
    EXPECT_GE(after.prefetches - before.prefetches, 4 + 4 + 4 + 1);
    EXPECT_LE(after.prefetches_wasted - before.prefetches_wasted, 2);
  });
}

// ---------------------------------------------------------------- how many at a time

int64_t peak_units(int64_t limit) {
  std::atomic<int64_t> peak = 0;
  run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    Row row = make_row();
    Options options = row_options(communicator);
    options.limit_all_gathers = limit > 0;
    options.max_gathered_units = std::max<int64_t>(limit, 1);
    auto sharded = fully_shard(row, options);
    for (int i = 0; i < 3; ++i) row_step(row, *sharded, communicator->rank());
    peak = sharded->diagnostics().stats().peak_gathered_units - 1;  // without the root
  });
  return peak;
}

TEST(Limit, HoldsForGathersAheadToo) {
  for (int64_t limit : {1, 2, 3, 4}) EXPECT_EQ(peak_units(limit), limit);
  EXPECT_EQ(peak_units(0), kRowDepth) << "no limit";
}

// A layer is released when the next one begins: until then, the rank may use parameters of it for the first time.
TEST(Limit, UnitsAreReleasedWhenTheNextOneBegins) {
  run_ranks(2, [](std::shared_ptr<Communicator> communicator) {
    Row row = make_row();
    Options options = row_options(communicator);
    options.forward_prefetch = false;
    auto sharded = fully_shard(row, options);
    std::vector<int64_t> gathered;
    row->after_layer = [&](int) { gathered.push_back(sharded->diagnostics().stats().gathered_units); };
    row_step(row, *sharded, communicator->rank());
    row_step(row, *sharded, communicator->rank());
    EXPECT_EQ(gathered, std::vector<int64_t>(2 * kRowDepth, 2)) << "the root and the layer";
  });
}

TEST(Limit, ListsOfTheUserGoBeyondIt) {
  run_ranks(2, [](std::shared_ptr<Communicator> communicator) {
    auto recording = std::make_shared<comm::RecordingCommunicator>(communicator);
    Row row = make_row();
    Options options = row_options(recording);
    options.forward_prefetch = false;
    options.backward_prefetch = BackwardPrefetch::kNone;
    auto sharded = fully_shard(row, options);
    auto& layers = row->layers;
    sharded->set_modules_to_forward_prefetch(*layers[0], {*layers[1], *layers[2], *layers[3]});
    sharded->set_modules_to_backward_prefetch(*layers[4], {*layers[3], *layers[2]});
    row_step(row, *sharded, communicator->rank());
    EXPECT_EQ(log_of(*recording), "g0 g1 g2 g3 w0 w1 w2 w3 g4 w4 g3 g2 r4 w3 r3 w2 r2 g1 w1 r1 g0 w0 r0");
    sharded->set_modules_to_forward_prefetch(*layers[0], {});
    sharded->set_modules_to_backward_prefetch(*layers[4], {});
    recording->clear();
    row_step(row, *sharded, communicator->rank());
    EXPECT_EQ(log_of(*recording), "g0 w0 g1 w1 g2 w2 g3 w3 g4 w4 r4 g3 w3 r3 g2 w2 r2 g1 w1 r1 g0 w0 r0");
    testing::expect_error([&] { sharded->set_modules_to_forward_prefetch(*row->first, {}); },
                          {"no unit was made for this module itself"});
  });
}

}  // namespace
}  // namespace fsdp
