// Tests the trace of a step: ranges of computation, collectives and waits, and the memory of each category.
#include <algorithm>

#include "engine/engine.h"
#include "support/memory/sanitizers.h"
#include "support/nets/row.h"
#include "support/ranks/over_gloo.h"
#include "support/ranks/thread_ranks.h"
#include "support/training/sharding.h"

namespace fsdp {
namespace {

using testing::kRowDepth;
using testing::make_row;
using testing::Row;
using testing::row_options;
using testing::row_step;
using testing::run_ranks;

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
    Options options = row_options(communicator);
    configure(options);
    auto sharded = fully_shard(row, options);
    for (int i = 0; i < 2; ++i) row_step(row, *sharded, communicator->rank());
    EXPECT_TRUE(sharded->tracing().stop().empty()) << "nobody wanted one";
    sharded->tracing().start();
    {
      auto range = sharded->tracing().range("step");
      row_step(row, *sharded, communicator->rank());
    }
    auto got = sharded->tracing().stop().ranges;
    row_step(row, *sharded, communicator->rank());
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
    auto sharded = fully_shard(row, row_options(communicator));
    for (int i = 0; i < 2; ++i) row_step(row, *sharded, communicator->rank());
    sharded->tracing().start([] { return std::vector<MemoryCategory>{{"optimizer state", 77, 78, 79}}; });
    {
      auto range = sharded->tracing().range("step");
      row_step(row, *sharded, communicator->rank());
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
  const std::vector<int64_t> shards = {(kRowDepth * kLayer + kRoot) / 2};
  EXPECT_EQ(bytes_over_a_step("parameter shards"), shards);
  std::vector<int64_t> gradients = {shards[0], 0};  // gradients of the previous step, which are cleared
  for (int i = 0; i < kRowDepth; ++i) gradients.push_back(gradients.back() + kLayer / 2);
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
    auto sharded = fully_shard(row, row_options(communicator));
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
