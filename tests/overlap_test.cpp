// Tests prefetching: which gathers are issued ahead, when and how many, and that a wrong prediction does not change
// results.
#include "comm/testing/recording_communicator.h"
#include "engine/engine.h"
#include "support/memory/sanitizers.h"
#include "support/ranks/over_gloo.h"
#include "support/ranks/thread_ranks.h"
#include "support/training/sharding.h"

namespace fsdp {
namespace {

using testing::expect_same;
using testing::run_ranks;
using testing::weights_of;

// Layers in a row that can be run in any order, between parameters of the root.
struct RowImpl : torch::nn::Module {
  explicit RowImpl(int depth) {
    first = register_module("first", torch::nn::Linear(5, 7));
    for (int i = 0; i < depth; ++i) layers.push_back(register_module("l" + std::to_string(i), torch::nn::Linear(7, 7)));
    last = register_parameter("last", torch::linspace(-1, 1, 7));
    to(at::kDouble);
  }
  torch::Tensor forward(torch::Tensor x, const std::vector<int>& order) {
    x = torch::tanh(first(x));
    for (int i : order) {
      x = x + torch::tanh(layers[i](x));
      if (after_layer) after_layer(i);
    }
    return (x * last).pow(2).mean();
  }
  torch::nn::Linear first{nullptr};
  std::vector<torch::nn::Linear> layers;
  torch::Tensor last;
  std::function<void(int)> after_layer;
};
TORCH_MODULE(Row);

constexpr int kDepth = 5;
const std::vector<int> kInOrder = {0, 1, 2, 3, 4};

Row make_row() {
  return testing::seeded([] { return Row(kDepth); });
}

// Makes each of l0, l1, … a unit; the layer `first` is part of the root.
Options options_for(const std::shared_ptr<Communicator>& communicator) {
  Options options;
  options.communicator = communicator;
  options.auto_wrap_policy = [](const WrapCandidate& candidate) { return candidate.fqn.size() == 2; };
  return options;
}

torch::Tensor input(int rank) { return torch::arange(15).to(at::kDouble).view({3, 5}) / (10 + rank); }

void step(Row& row, ShardedModule& sharded, int rank, const std::vector<int>& order = kInOrder) {
  sharded.zero_grad();
  row->forward(input(rank), order).backward();
  testing::descend(sharded.parameters());
}

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
    Options options = options_for(recording);
    configure(options);
    auto sharded = fully_shard(row, options);
    step(row, *sharded, recording->rank());
    recording->clear();
    step(row, *sharded, recording->rank());
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
      Options options = options_for(recording);
      options.one_communicator = one;
      auto sharded = fully_shard(row, options);
      step(row, *sharded, recording->rank());
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
          Options options = options_for(communicator);
          options.sharding_strategy = strategy;
          options.forward_prefetch = ahead;
          options.backward_prefetch = ahead ? BackwardPrefetch::kPre : BackwardPrefetch::kNone;
          auto sharded = fully_shard(row, options);
          for (const std::vector<int>& order : orders) step(row, *sharded, communicator->rank(), order);
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
    auto sharded = fully_shard(row, options_for(communicator));
    for (int i = 0; i < 3; ++i) step(row, *sharded, communicator->rank());
    EXPECT_EQ(sharded->diagnostics().stats().prefetches_wasted, 0);
    step(row, *sharded, communicator->rank(), {3, 0});
    EXPECT_GT(sharded->diagnostics().stats().prefetches_wasted, 0);
  });
}

TEST(Prefetch, EvaluationBetweenStepsIsLearned) {
  run_ranks(2, [](std::shared_ptr<Communicator> communicator) {
    Row row = make_row();
    auto sharded = fully_shard(row, options_for(communicator));
    auto round = [&] {
      step(row, *sharded, communicator->rank());
      torch::NoGradGuard no_grad;
      row->forward(input(0), kInOrder);
      row->forward(input(1), {0, 1});
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
    Options options = options_for(communicator);
    options.limit_all_gathers = limit > 0;
    options.max_gathered_units = std::max<int64_t>(limit, 1);
    auto sharded = fully_shard(row, options);
    for (int i = 0; i < 3; ++i) step(row, *sharded, communicator->rank());
    peak = sharded->diagnostics().stats().peak_gathered_units - 1;  // without the root
  });
  return peak;
}

TEST(Limit, HoldsForGathersAheadToo) {
  for (int64_t limit : {1, 2, 3, 4}) EXPECT_EQ(peak_units(limit), limit);
  EXPECT_EQ(peak_units(0), kDepth) << "no limit";
}

// A layer is released when the next one begins: until then, the rank may use parameters of it for the first time.
TEST(Limit, UnitsAreReleasedWhenTheNextOneBegins) {
  run_ranks(2, [](std::shared_ptr<Communicator> communicator) {
    Row row = make_row();
    Options options = options_for(communicator);
    options.forward_prefetch = false;
    auto sharded = fully_shard(row, options);
    std::vector<int64_t> gathered;
    row->after_layer = [&](int) { gathered.push_back(sharded->diagnostics().stats().gathered_units); };
    step(row, *sharded, communicator->rank());
    step(row, *sharded, communicator->rank());
    EXPECT_EQ(gathered, std::vector<int64_t>(2 * kDepth, 2)) << "the root and the layer";
  });
}

TEST(Limit, ListsOfTheUserGoBeyondIt) {
  run_ranks(2, [](std::shared_ptr<Communicator> communicator) {
    auto recording = std::make_shared<comm::RecordingCommunicator>(communicator);
    Row row = make_row();
    Options options = options_for(recording);
    options.forward_prefetch = false;
    options.backward_prefetch = BackwardPrefetch::kNone;
    auto sharded = fully_shard(row, options);
    auto& layers = row->layers;
    sharded->set_modules_to_forward_prefetch(*layers[0], {*layers[1], *layers[2], *layers[3]});
    sharded->set_modules_to_backward_prefetch(*layers[4], {*layers[3], *layers[2]});
    step(row, *sharded, communicator->rank());
    EXPECT_EQ(log_of(*recording), "g0 g1 g2 g3 w0 w1 w2 w3 g4 w4 g3 g2 r4 w3 r3 w2 r2 g1 w1 r1 g0 w0 r0");
    sharded->set_modules_to_forward_prefetch(*layers[0], {});
    sharded->set_modules_to_backward_prefetch(*layers[4], {});
    recording->clear();
    step(row, *sharded, communicator->rank());
    EXPECT_EQ(log_of(*recording), "g0 w0 g1 w1 g2 w2 g3 w3 g4 w4 r4 g3 w3 r3 g2 w2 r2 g1 w1 r1 g0 w0 r0");
    testing::expect_error([&] { sharded->set_modules_to_forward_prefetch(*row->first, {}); },
                          {"no unit was made for this module itself"});
  });
}

// ---------------------------------------------------------------- the trace

// Returns the units of one track in a pass, in order of time.
std::string units_of(const std::vector<TraceRange>& ranges, TraceTrack track, Pass pass) {
  std::string units;
  for (const TraceRange& range : ranges) {
    if (range.track == track && range.pass == pass) units += (units.empty() ? "" : " ") + range.name;
  }
  return units;
}

std::vector<TraceRange> trace_of_third_step(const std::function<void(Options&)>& configure) {
  std::vector<TraceRange> trace;
  run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    Row row = make_row();
    Options options = options_for(communicator);
    configure(options);
    auto sharded = fully_shard(row, options);
    for (int i = 0; i < 2; ++i) step(row, *sharded, communicator->rank());
    EXPECT_TRUE(sharded->tracing().stop().empty()) << "nobody wanted one";
    sharded->tracing().start();
    {
      auto range = sharded->tracing().range("step");
      step(row, *sharded, communicator->rank());
    }
    auto got = sharded->tracing().stop().ranges;
    step(row, *sharded, communicator->rank());
    EXPECT_TRUE(sharded->tracing().stop().empty());
    if (communicator->rank() == 0) trace = got;
  });
  std::sort(trace.begin(), trace.end(), [](const auto& a, const auto& b) { return a.begin_ns < b.begin_ns; });
  return trace;
}

TEST(Trace, ShowsComputationGathersReductionsAndWaits) {
  auto trace = trace_of_third_step([](Options&) {});
  const std::string forward = "root l0 l1 l2 l3 l4 root", backward = "root l4 l3 l2 l1 l0";
  EXPECT_EQ(units_of(trace, TraceTrack::kCompute, Pass::kForward), forward);
  EXPECT_EQ(units_of(trace, TraceTrack::kCompute, Pass::kBackward), backward);
  for (TraceTrack track : {TraceTrack::kGather, TraceTrack::kWait}) {
    EXPECT_EQ(units_of(trace, track, Pass::kForward), "root l0 l1 l2 l3 l4") << to_string(track);
    EXPECT_EQ(units_of(trace, track, Pass::kBackward), "l3 l2 l1 l0") << to_string(track);
    if (track == TraceTrack::kGather) track = TraceTrack::kReduce;
    EXPECT_EQ(units_of(trace, track, Pass::kReduce), "l4 l3 l2 l1 l0 root") << to_string(track);
  }
  EXPECT_EQ(units_of(trace, TraceTrack::kStep, Pass::kUser), "step");
  for (const TraceRange& range : trace) {
    EXPECT_LE(trace.front().begin_ns, range.begin_ns);
    EXPECT_LE(range.begin_ns, range.end_ns);
    EXPECT_LE(range.end_ns, trace.front().end_ns) << "all within the step";
  }
}

// Returns the memory of a category over the third step on rank 0, without repetitions.
std::vector<int64_t> bytes_over_a_step(const std::string& category) {
  std::vector<int64_t> bytes;
  testing::run_ranks_over_gloo(2, [&](std::shared_ptr<Communicator> communicator) {
    Row row = make_row();
    auto sharded = fully_shard(row, options_for(communicator));
    for (int i = 0; i < 2; ++i) step(row, *sharded, communicator->rank());
    sharded->tracing().start([] { return std::vector<MemoryCategory>{{"optimizer state", 77, 78, 79}}; });
    {
      auto range = sharded->tracing().range("step");
      step(row, *sharded, communicator->rank());
    }
    const Trace trace = sharded->tracing().stop();
    if (communicator->rank() != 0) return;
    for (const TraceMemory& memory : trace.memory) {
      EXPECT_LE(trace.memory.front().at_ns, memory.at_ns);
      for (const auto& [name, value] : memory.bytes) {
        if (name == category && (bytes.empty() || bytes.back() != value)) bytes.push_back(value);
      }
    }
  });
  return bytes;
}

// A layer has 7 * 7 + 7 doubles. The root, which stays gathered, has 7 * 5 + 7 + 7 and one more as padding of the last
// shard.
constexpr int64_t kLayer = 56 * 8, kRoot = 50 * 8;

// Returns the expected bytes: none, the root alone, one more unit, two more units; then, `times` times, one and two
// more units as units are released and gathered; then one more unit, the root alone, none.
std::vector<int64_t> two_at_a_time(int times) {
  const int64_t one = kRoot + kLayer, two = kRoot + 2 * kLayer;
  std::vector<int64_t> bytes = {0, kRoot, one, two};
  for (int i = 0; i < times; ++i) bytes.insert(bytes.end(), {one, two});
  bytes.insert(bytes.end(), {one, kRoot, 0});
  return bytes;
}

// Returns the expected bytes of gradient buffers. The root's parameter `last` gets its gradient first. The gradients of
// a layer, beginning with a bias, are held together with the buffer of the previous layer until that buffer is reduced.
// The gradients of l0, with which backward ends, are held until the gradients of the root's first layer have arrived.
// Only the root's buffer is padded.
std::vector<int64_t> gradients_that_wait() {
  const int64_t bias = 7 * 8, last = 7 * 8, first = (7 * 5 + 7) * 8;
  std::vector<int64_t> bytes = {0, last, last + bias, last + kLayer};
  for (int i = 0; i < 3; ++i) bytes.insert(bytes.end(), {last + kLayer + bias, last + 2 * kLayer, last + kLayer});
  bytes.push_back(last + kLayer + bias);
  for (int layers : {1, 0}) bytes.push_back(first + last + layers * kLayer);
  bytes.insert(bytes.end(), {kRoot, 0});
  return bytes;
}

TEST(Trace, KnowsTheMemoryOfEachCategory) {
  const std::vector<int64_t> shards = {(kDepth * kLayer + kRoot) / 2};
  EXPECT_EQ(bytes_over_a_step("parameter shards"), shards);
  std::vector<int64_t> gradients = {shards[0], 0};  // gradients of the previous step, which are cleared
  for (int i = 0; i < kDepth; ++i) gradients.push_back(gradients.back() + kLayer / 2);
  gradients.push_back(shards[0]);
  EXPECT_EQ(bytes_over_a_step("gradient shards"), gradients);
  EXPECT_EQ(bytes_over_a_step("optimizer state"), std::vector<int64_t>{77});
  // In forward, l2, l3 and l4 replace other units; in backward, l3, l2, l1 and l0 do.
  EXPECT_EQ(bytes_over_a_step("unsharded parameters"), two_at_a_time(3 + 4));
  EXPECT_EQ(bytes_over_a_step("gradient buffers"), gradients_that_wait());
}

TEST(Trace, CountsOtherAllocationsTogether) {
  torch::Tensor large;
  std::vector<int64_t> else_of;
  run_ranks(1, [&](std::shared_ptr<Communicator> communicator) {
    Row row = make_row();
    auto sharded = fully_shard(row, options_for(communicator));
    sharded->tracing().start();
    {
      auto range = sharded->tracing().range("nothing");
    }
    large = torch::zeros({1 << 20});
    {
      auto range = sharded->tracing().range("more");
    }
    const Trace trace = sharded->tracing().stop();
    ASSERT_EQ(trace.memory.size(), 4);
    for (const TraceMemory& memory : trace.memory) {
      ASSERT_EQ(memory.bytes.back().first, "everything else");
      else_of.push_back(memory.bytes.back().second);
    }
  });
  if (testing::kAllocatedMemoryIsKnown) {
    EXPECT_NEAR(static_cast<double>(else_of[2] - else_of[1]), 4 << 20, 64 << 10);
  }
}

TEST(Trace, ShowsGathersHeldBackByTheLimiter) {
  auto trace = trace_of_third_step([](Options&) {});
  EXPECT_EQ(units_of(trace, TraceTrack::kLimiter, Pass::kForward), "l2 l3 l4");
  EXPECT_EQ(units_of(trace, TraceTrack::kLimiter, Pass::kBackward), "l2 l1 l0");
  auto unlimited = trace_of_third_step([](Options& options) { options.limit_all_gathers = false; });
  EXPECT_EQ(units_of(unlimited, TraceTrack::kLimiter, Pass::kForward), "");
  EXPECT_EQ(units_of(unlimited, TraceTrack::kLimiter, Pass::kBackward), "");
}

}  // namespace
}  // namespace fsdp
