// What the replay of a tape makes of waits, conversions, exchanges of hosts and retries of the allocator.
#include "planner/pricing/priced_tape.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "planner/pricing/collective_price.h"
#include "planner/ranks/planned_communicator.h"
#include "planner/testing/recording.h"

namespace fsdp::planner::priced_tape_test {
namespace {

constexpr c10::StreamId kSideStream = 5;

at::Tensor made(int64_t numel, at::ScalarType dtype = at::kFloat) {
  return torch::empty({numel}, at::TensorOptions(dtype).device(planned_device()));
}

c10::Stream side_stream() { return c10::Stream(c10::Stream::UNSAFE, planned_device(), kSideStream); }

// A tape of one step, and its replay.
class OneStep {
 public:
  explicit OneStep(const std::string& cluster = "8xa100-80") : cluster_(parse_cluster(cluster)) {
    ranks_ = make_planned_communicator(recording_.tape(), 0,
                                       {.world = cluster_.ranks(), .per_host = cluster_.ranks_per_host});
  }

  Communicator& ranks() { return *ranks_; }
  const Tape& tape() { return recording_.tape(); }
  void play(const std::vector<AllocatorRetry>& retries = {}, const Stack& stack = {}, bool splits_weights = false) {
    priced_ = price_tape(tape(), {0, tape().entries().size()}, cluster_, retries,
                         {.stack = stack, .splits_weights = splits_weights});
    result_ = run_replay(priced_.replay);
  }

  // Returns the n-th item of this kind.
  const ReplayedItem& item(ReplayKind kind, size_t number = 0) const {
    for (size_t i = 0; i < priced_.replay.items.size(); ++i) {
      if (priced_.replay.items[i].kind == kind && number-- == 0) return result_.items[i];
    }
    throw std::out_of_range("there is no such item");
  }
  void note_accesses() { recording_.tape().note_accesses(); }
  const ReplayResult& result() const { return result_; }
  const PricedTape& priced() const { return priced_; }

 private:
  Cluster cluster_;
  Recording recording_;
  std::shared_ptr<Communicator> ranks_;
  PricedTape priced_;
  ReplayResult result_;
};

constexpr int64_t kNumel = int64_t{1} << 28;

// Reduces and scatters on a side stream, waits on the stream that computes, and computes.
void reduce(OneStep& step, at::ScalarType result) {
  const at::Tensor output = made(kNumel / step.ranks().size(), result), input = made(kNumel, at::kBFloat16);
  std::unique_ptr<Work> work;
  {
    const c10::StreamGuard guard(side_stream());
    work = step.ranks().reduce_scatter(output, input, {}, {"unit", 0, Pass::kReduce}, nullptr);
  }
  work->wait();
  made(8).zero_();
  step.play();
}

TEST(PricedTape, AWaitIsForTheCollective) {
  OneStep step;
  reduce(step, at::kBFloat16);
  const ReplayedItem& collective = step.item(ReplayKind::kCollective);
  EXPECT_GT(collective.end - collective.begin, 1e-3);  // 512 MiB
  EXPECT_EQ(step.item(ReplayKind::kStreamWait).end, collective.end);
  EXPECT_GE(step.item(ReplayKind::kKernel).begin, collective.end);
}

// A gather and a reduction on different streams.
double seconds_of_two(const char* name, bool through_twin) {
  SCOPED_TRACE(name);
  OneStep step;
  const at::Tensor whole = made(kNumel), part = made(kNumel / 8);
  step.ranks().all_gather(whole, part, {"unit", 0, Pass::kForward});
  {
    const c10::StreamGuard guard(side_stream());
    Communicator& reducing = through_twin ? *step.ranks().twin() : step.ranks();
    reducing.reduce_scatter(part, whole, {}, {"unit", 0, Pass::kReduce}, nullptr);
  }
  step.play();
  return step.item(ReplayKind::kCollective, 1).begin - step.item(ReplayKind::kCollective, 0).end;
}

TEST(PricedTape, CollectivesOfOneCommunicatorKeepTheirOrder) {
  EXPECT_GE(seconds_of_two("the same", false), 0);
  EXPECT_LT(seconds_of_two("its twin", true), 0);
}

TEST(PricedTape, AWaitIsForTheConversionOfTheSumToo) {
  OneStep step;
  reduce(step, at::kFloat);
  const ReplayedItem& conversion = step.item(ReplayKind::kKernel, 0);
  EXPECT_GE(conversion.begin, step.item(ReplayKind::kCollective).end);
  EXPECT_GT(conversion.end, conversion.begin);
  EXPECT_EQ(step.item(ReplayKind::kStreamWait).end, conversion.end);
}

TEST(PricedTape, EventsOrderStreams) {
  OneStep step;
  const at::Tensor large = made(kNumel), small = made(8);
  large.zero_();
  c10::Event event(c10::kPrivateUse1);
  event.record(c10::Stream(c10::Stream::UNSAFE, planned_device(), 0));
  event.block(side_stream());
  {
    const c10::StreamGuard guard(side_stream());
    small.zero_();
  }
  step.play();
  EXPECT_EQ(step.priced().streams, (std::vector<int>{0, kSideStream}));
  EXPECT_GT(step.item(ReplayKind::kKernel, 0).end, 4e-4);
  EXPECT_GE(step.item(ReplayKind::kKernel, 1).begin, step.item(ReplayKind::kKernel, 0).end);
}

TEST(PricedTape, TheHostWaitsForNumbersThatItReads) {
  OneStep step;
  made(kNumel).zero_();
  made(1).item();
  step.play();
  EXPECT_EQ(step.item(ReplayKind::kHostWaitsStream).end, step.item(ReplayKind::kKernel).end);
}

TEST(PricedTape, CollectivesOfOneRankTakeNoTime) {
  OneStep step("1xa100-80");
  const at::Tensor tensor = made(kNumel);
  step.ranks().all_gather(tensor, tensor, {"unit", 0, Pass::kForward})->wait();
  step.play();
  EXPECT_EQ(step.item(ReplayKind::kCollective).end, step.item(ReplayKind::kCollective).begin);
}

TEST(PricedTape, HostsExchangeBytesWithEachOther) {
  const auto seconds = [](const std::string& cluster) {
    OneStep step(cluster);
    step.ranks().all_gather_bytes("bytes", {"unit", 0, Pass::kUser});
    step.play();
    return step.item(ReplayKind::kHostWork).end;
  };
  EXPECT_EQ(seconds("1xa100-80"), 0);
  EXPECT_GT(seconds("8xa100-80"), 0);
  EXPECT_GT(seconds("8x8xa100-80"), 4 * seconds("8xa100-80"));
}

// 1 ms, and 0.3 ms for each segment, after the device has become idle.
TEST(PricedTape, ARetryOfTheAllocatorStopsHostAndDevice) {
  const auto seconds = [](const std::vector<AllocatorRetry>& retries) {
    OneStep step;
    const at::Tensor tensor = made(kNumel);
    tensor.zero_();
    const size_t entry = step.tape().entries().size();
    made(16).zero_();
    std::vector<AllocatorRetry> placed = retries;
    for (AllocatorRetry& retry : placed) retry.entry = entry;
    step.play(placed);
    return step.result().seconds;
  };
  const double stopped = seconds({{.segments = 4}}) - seconds({});
  EXPECT_GT(stopped, 2.2e-3);
  EXPECT_LT(stopped, 2.3e-3);
}

// A gather among these ranks on a side stream, and a kernel after it.
void gather(Communicator& ranks, at::ScalarType dtype) {
  const at::Tensor output = made(kNumel, dtype), input = made(kNumel / ranks.size(), dtype);
  std::unique_ptr<Work> work;
  {
    const c10::StreamGuard guard(side_stream());
    work = ranks.all_gather(output, input, {"unit", 0, Pass::kForward});
  }
  work->wait();
  made(8).zero_();
}

void gather(OneStep& step, at::ScalarType dtype, const Stack& stack) {
  gather(step.ranks(), dtype);
  step.play({}, stack);
}

TEST(PricedTape, StacksGatherInFloat8) {
  const auto seconds = [](at::ScalarType dtype, bool float8) {
    OneStep step;
    gather(step, dtype, {.float8_gathers = float8});
    const ReplayedItem& collective = step.item(ReplayKind::kCollective);
    return collective.end - collective.begin;
  };
  EXPECT_NEAR(seconds(at::kBFloat16, true) / seconds(at::kBFloat16, false), 0.5, 0.05);
  EXPECT_EQ(seconds(at::kFloat, true), seconds(at::kFloat, false));
}

// 512 MiB are read and written before the next kernel.
TEST(PricedTape, StacksCopyGathers) {
  const auto seconds_of_plain = [] {
    OneStep plain;
    gather(plain, at::kBFloat16, {});
    return plain.result().seconds;
  };
  const double plain = seconds_of_plain();
  OneStep copied;
  gather(copied, at::kBFloat16, {.copies_gathers = true});
  const ReplayedItem& copy = copied.item(ReplayKind::kKernel);
  EXPECT_GE(copy.begin, copied.item(ReplayKind::kCollective).end);
  EXPECT_GT(copy.end - copy.begin, 2.0 * (1 << 29) / 2039e9);
  EXPECT_GT(copied.result().seconds, plain + (copy.end - copy.begin) / 2);
}

// Neighbours that split weights exchange activations.
TEST(PricedTape, StacksCopyParametersOnly) {
  const auto seconds = [](const std::vector<int>& ranks, bool copies) {
    OneStep step;
    gather(*step.ranks().subgroup(ranks, {"subgroup", 0, Pass::kSetup}), at::kBFloat16);
    step.play({}, {.copies_gathers = copies}, /*splits_weights=*/true);
    return step.result().seconds;
  };
  EXPECT_EQ(seconds({0, 1}, true), seconds({0, 1}, false));
  EXPECT_GT(seconds({0, 2}, true), 1.1 * seconds({0, 2}, false));
}

TEST(PricedTape, StacksHaveTheirOwnHostTimes) {
  const auto busy = [](const Stack& stack) {
    OneStep step;
    gather(step, at::kBFloat16, stack);
    return step.result().host_busy;
  };
  EXPECT_NEAR(busy({}), 10e-6, 1e-9);
  EXPECT_NEAR(busy({.host_per_kernel = 30e-6}), 60e-6, 1e-9);
  EXPECT_NEAR(busy({.host_per_kernel = 30e-6, .host_per_collective = 100e-6}), 130e-6, 1e-9);
}

TEST(PricedTape, FusedKernelsAreOneItem) {
  OneStep step;
  step.note_accesses();
  const at::Tensor x = made(1 << 24);
  x.exp().sin().neg();
  step.play();
  const double apart = step.result().seconds;
  step.play({}, {.fusion = Fusion::kAll});
  size_t kernels = 0;
  for (const ReplayItem& item : step.priced().replay.items) kernels += item.kind == ReplayKind::kKernel;
  EXPECT_EQ(kernels, 1);
  EXPECT_LT(step.result().seconds, apart / 2);
}

TEST(PricedTape, GroupsOfReplicasShareTheNics) {
  OneStep step("4x8xa100-80");
  const at::Tensor tensor = made(kNumel);
  const auto replicas = step.ranks().subgroup({0, 8, 16, 24}, {"replicas", 0, Pass::kSetup});
  replicas->all_reduce(tensor, tensor, {}, {"unit", 0, Pass::kReduce}, nullptr)->wait();
  step.play();
  const TapeCollective& collective = step.tape().collectives().back();
  const Topology topology = topology_of(step.tape(), collective, parse_cluster("4x8xa100-80"));
  EXPECT_EQ(topology.groups_per_node, 8);
  // 1 GiB, of which each rank sends one and a half through an eighth of 8 NICs of 25 GB/s.
  EXPECT_GT(step.result().seconds, 1.5 * (1 << 30) / 25e9);
}

}  // namespace
}  // namespace fsdp::planner::priced_tape_test
