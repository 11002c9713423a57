// Tests the all-gather of ranges: results, byte counts, wrappers, and errors.
#include "comm/checked/checked_communicator.h"
#include "comm/testing/collectives.h"
#include "comm/testing/faulty_communicator.h"
#include "comm/testing/recording_communicator.h"
#include "fsdp/backends.h"
#include "fsdp/communicator.h"
#include "support/devices/simulated_device.h"
#include "support/faults/error_of.h"
#include "support/ranks/thread_ranks.h"

namespace fsdp::comm::all_gather_ranges_test {
namespace {

using ::testing::AllOf;
using ::testing::Combine;
using testing::error_of;
using ::testing::HasSubstr;
using testing::id;
using testing::run_ranks;
using testing::simulated_device;
using ::testing::Values;

void with_gloo(int size, const std::function<void(std::shared_ptr<Communicator>)>& body) {
  run_ranks(size, body, {.communicator = "gloo"});
}

// Uneven ranges of several sizes, some of them empty, with a gap after each.
int64_t few(int rank, int range) { return (rank * 3 + range * 5) % 4; }
int64_t many(int rank, int range) { return 20000 + rank * 100 + range; }
int64_t equal(int, int) { return 7; }
int64_t of_the_last_rank_alone(int rank, int) { return rank == 2 ? 5 : 0; }
using Sizes = int64_t (*)(int rank, int range);

constexpr int kRanges = 3;  // of each rank
constexpr int64_t kGap = 2;

// Places ranges in turns: the first of each rank, then the second of each, …
RankRanges ranges_of(Sizes sizes, int ranks) {
  RankRanges ranges(static_cast<size_t>(ranks));
  int64_t begin = 1;
  for (int range = 0; range < kRanges; ++range) {
    for (int rank = 0; rank < ranks; ++rank) {
      ranges[static_cast<size_t>(rank)].push_back({begin, sizes(rank, range)});
      begin += sizes(rank, range) + kGap;
    }
  }
  return ranges;
}

int64_t numel_of(const RankRanges& ranges) {
  int64_t end = 0;
  for (const auto& of_rank : ranges) {
    for (const ElementRange& range : of_rank) end = std::max(end, range.begin + range.numel);
  }
  return end + 1;
}

// Values of a rank, which differ from those of the others.
at::Tensor values_of(int rank, int64_t numel, at::ScalarType dtype) {
  return ((torch::arange(numel) * 7 + rank * 11) % 120 + 1).to(dtype);
}

// Returns a tensor of zeros with these values in the ranges of a rank.
at::Tensor with_ranges_of(const RankRanges& ranges, int rank, at::ScalarType dtype) {
  const int64_t numel = numel_of(ranges);
  const at::Tensor values = values_of(rank, numel, dtype), tensor = torch::zeros({numel}, dtype);
  for (const ElementRange& range : ranges[static_cast<size_t>(rank)]) {
    tensor.narrow(0, range.begin, range.numel).copy_(values.narrow(0, range.begin, range.numel));
  }
  return tensor;
}

// Returns the tensor of zeros with the ranges of all ranks.
at::Tensor gathered(const RankRanges& ranges, at::ScalarType dtype) {
  at::Tensor all = torch::zeros({numel_of(ranges)}, dtype);
  for (size_t rank = 0; rank < ranges.size(); ++rank) all += with_ranges_of(ranges, static_cast<int>(rank), dtype);
  return all;
}

void check_gather(Communicator& comm, Sizes sizes, at::ScalarType dtype) {
  const RankRanges ranges = ranges_of(sizes, comm.size());
  const at::Tensor tensor = with_ranges_of(ranges, comm.rank(), dtype);
  comm.all_gather_ranges(tensor, ranges, id("x"))->wait();
  EXPECT_TRUE(torch::equal(tensor, gathered(ranges, dtype))) << "rank " << comm.rank();
}

class RangeSizes : public ::testing::TestWithParam<std::tuple<int, Sizes, at::ScalarType>> {};

TEST_P(RangeSizes, OverGlooReachTheirPlaces) {
  const auto [size, sizes, dtype] = GetParam();
  with_gloo(size, [&, sizes = sizes, dtype = dtype](std::shared_ptr<Communicator> comm) {
    ASSERT_TRUE(comm->gathers_ranges());
    check_gather(*comm, sizes, dtype);
    int64_t own = 0;
    for (int range = 0; range < kRanges; ++range) own += sizes(comm->rank(), range);
    for (int peer = 0; peer < comm->size(); ++peer) {
      EXPECT_EQ(comm->bytes_sent_to()[static_cast<size_t>(peer)],
                peer == comm->rank() ? 0 : own * static_cast<int64_t>(c10::elementSize(dtype)));
    }
  });
}

INSTANTIATE_TEST_SUITE_P(All, RangeSizes,
                         Combine(Values(2, 3, 4), Values(&few, &many, &equal, &of_the_last_rank_alone),
                                 Values(at::kFloat, at::kLong, at::kBFloat16)));

TEST(AllGatherRanges, SeveralInFlight) {
  with_gloo(3, [](std::shared_ptr<Communicator> comm) {
    std::vector<std::unique_ptr<Work>> works;
    std::vector<at::Tensor> tensors;
    const std::vector<Sizes> sizes = {&few, &many, &equal};
    for (const Sizes of_case : sizes) {
      const RankRanges ranges = ranges_of(of_case, 3);
      tensors.push_back(with_ranges_of(ranges, comm->rank(), at::kFloat));
      works.push_back(comm->all_gather_ranges(tensors.back(), ranges, id("x")));
    }
    for (size_t i = works.size(); i-- > 0;) works[i]->wait();
    for (size_t i = 0; i < sizes.size(); ++i) {
      EXPECT_TRUE(torch::equal(tensors[i], gathered(ranges_of(sizes[i], 3), at::kFloat))) << i;
    }
  });
}

TEST(AllGatherRanges, IdentitiesAreCompared) {
  std::vector<std::string> errors(2);
  with_gloo(2, [&](std::shared_ptr<Communicator> comm) {
    const auto dtype = comm->rank() == 0 ? at::kFloat : at::kInt;
    errors[static_cast<size_t>(comm->rank())] =
        error_of([&] { comm->all_gather_ranges(torch::zeros({2}, dtype), {{{0, 1}}, {{1, 1}}}, id("x"))->wait(); });
  });
  for (const auto& error : errors) EXPECT_THAT(error, AllOf(HasSubstr("of Float"), HasSubstr("of Int")));
}

TEST(AllGatherRanges, ALostRankIsNamed) {
  std::vector<std::string> errors(2);
  with_gloo(2, [&](std::shared_ptr<Communicator> comm) {
    if (comm->rank() == 1) return;
    errors[0] = error_of([&] { comm->all_gather_ranges(torch::zeros({2}), {{{0, 1}}, {{1, 1}}}, id("x"))->wait(); });
  });
  EXPECT_THAT(errors[0], HasSubstr("rank 1 is lost"));
}

TEST(AllGatherRanges, RangesThatDoNotFitAreNamed) {
  with_gloo(2, [](std::shared_ptr<Communicator> comm) {
    const auto error = [&](const at::Tensor& tensor, const RankRanges& ranges) {
      return error_of([&] { comm->all_gather_ranges(tensor, ranges, id("x")); });
    };
    const at::Tensor four = torch::zeros({4});
    EXPECT_THAT(error(four, {{{0, 1}}}), HasSubstr("there are ranges of 1 ranks for a group of 2 ranks"));
    EXPECT_THAT(error(four, {{{0, 1}}, {{2, 3}}}),
                HasSubstr("the 3 elements from 2 on, of rank 1, are not in a tensor of 4"));
    EXPECT_THAT(error(four, {{{-1, 1}}, {}}), HasSubstr("the 1 elements from -1 on, of rank 0"));
    EXPECT_THAT(error(four, {{{1, -1}}, {}}), HasSubstr("the -1 elements from 1 on, of rank 0"));
    EXPECT_THAT(error(four.view({2, 2}), {{}, {}}), HasSubstr("1-D"));
    EXPECT_THAT(error(torch::zeros({4}, simulated_device()), {{}, {}}),
                HasSubstr("Gloo exchanges tensors in host memory"));
  });
}

TEST(AllGatherRanges, OthersHaveNone) {
  auto comm = make_fake_communicator(0, 2);
  EXPECT_FALSE(comm->gathers_ranges());
  EXPECT_THAT(error_of([&] { comm->all_gather_ranges(torch::zeros({2}), {{{0, 1}}, {{1, 1}}}, id("x")); }),
              HasSubstr("all-gather of 'x': a communicator over fake gathers no ranges; ask gathers_ranges() first"));
}

TEST(AllGatherRanges, CanBeRecordedCheckedAndLeftOut) {
  with_gloo(2, [](std::shared_ptr<Communicator> inner) {
    auto recording = std::make_shared<RecordingCommunicator>(inner);
    auto checked = CheckedCommunicator::over(
        recording, std::make_shared<CollectiveMonitor>(inner->rank(), DebugOptions()), "world");
    ASSERT_TRUE(checked->gathers_ranges());
    check_gather(*checked, few, at::kFloat);
    EXPECT_EQ(recording->count(CollectiveKind::kAllGather), 1);
    EXPECT_THAT(checked->monitor()->record().text(), HasSubstr("all-gather of 'x'"));

    FaultyCommunicator faulty(inner, {{0, Fault::What::kSkip, {}, ""}, {1, Fault::What::kFailIssue, {}, "full"}});
    ASSERT_TRUE(faulty.gathers_ranges());
    const at::Tensor tensor = torch::zeros({2});
    const RankRanges ranges = {{{0, 1}}, {{1, 1}}};
    faulty.all_gather_ranges(tensor, ranges, id("x"))->wait();
    EXPECT_THAT(error_of([&] { faulty.all_gather_ranges(tensor, ranges, id("x")); }), HasSubstr("full"));
  });
}

}  // namespace
}  // namespace fsdp::comm::all_gather_ranges_test
