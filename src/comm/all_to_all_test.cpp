// Tests the all-to-all of every communicator: results, byte counts, and errors if ranks or sizes do not match.
#include "comm/checked/checked_communicator.h"
#include "comm/testing/collectives.h"
#include "comm/testing/faulty_communicator.h"
#include "comm/testing/recording_communicator.h"
#include "fsdp/backends.h"
#include "fsdp/communicator.h"
#include "support/devices/simulated_device.h"
#include "support/faults/error_of.h"
#include "support/ranks/thread_ranks.h"
#include "support/ranks/unchecked_communicator.h"

namespace fsdp::comm::all_to_all_test {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Combine;
using testing::error_of;
using ::testing::HasSubstr;
using testing::id;
using testing::run_ranks;
using testing::simulated_device;
using ::testing::StrEq;
using ::testing::Values;
using namespace std::chrono_literals;

// The number of elements that rank `from` sends to rank `to`: uneven, with empty parts.
int64_t uneven(int from, int to) { return (from * 5 + to * 3) % 4; }
int64_t only_rank_0_sends(int from, int to) { return from == 0 ? 3 + to : 0; }
int64_t nothing(int, int) { return 0; }
int64_t many(int from, int to) { return 20000 + from * 100 + to; }
using Counts = int64_t (*)(int from, int to);

SplitCounts counts_of(Counts counts, int rank, int size) {
  SplitCounts result;
  for (int peer = 0; peer < size; ++peer) {
    result.send.push_back(counts(rank, peer));
    result.receive.push_back(counts(peer, rank));
  }
  return result;
}

// The elements that `from` sends to `to`, with other values for each pair.
at::Tensor parcel(Counts counts, int from, int to, at::ScalarType dtype) {
  return ((torch::arange(counts(from, to)) * 7 + from * 11 + to * 3) % 120).to(dtype);
}

at::Tensor sent_by(Counts counts, int rank, int size, at::ScalarType dtype) {
  std::vector<at::Tensor> parts;
  for (int peer = 0; peer < size; ++peer) parts.push_back(parcel(counts, rank, peer, dtype));
  return torch::cat(parts);
}

at::Tensor received_by(Counts counts, int rank, int size, at::ScalarType dtype) {
  std::vector<at::Tensor> parts;
  for (int peer = 0; peer < size; ++peer) parts.push_back(parcel(counts, peer, rank, dtype));
  return torch::cat(parts);
}

void check_exchange(Communicator& comm, Counts counts, at::ScalarType dtype, c10::Device device) {
  const int rank = comm.rank(), size = comm.size();
  const at::Tensor input = sent_by(counts, rank, size, dtype).to(device);
  const at::Tensor expected = received_by(counts, rank, size, dtype);
  const at::Tensor output = torch::full({expected.numel()}, 99, input.options());
  comm.all_to_all(output, input, counts_of(counts, rank, size), id("x"))->wait();
  EXPECT_TRUE(torch::equal(output.cpu(), expected)) << "rank " << rank << " got " << output;
  EXPECT_TRUE(torch::equal(input.cpu(), sent_by(counts, rank, size, dtype)));
}

uint64_t bytes_to(Counts counts, int rank, int peer, at::ScalarType dtype) {
  return rank == peer ? 0 : static_cast<uint64_t>(counts(rank, peer)) * c10::elementSize(dtype);
}

class AllToAllSizes : public ::testing::TestWithParam<std::tuple<int, Counts, at::ScalarType>> {};

TEST_P(AllToAllSizes, GlooMovesEachPart) {
  const auto [size, counts, dtype] = GetParam();
  run_ranks(size, [&, size = size, counts = counts, dtype = dtype](std::shared_ptr<Communicator> comm) {
    check_exchange(*comm, counts, dtype, c10::kCPU);
    for (int peer = 0; peer < size; ++peer) {
      EXPECT_EQ(comm->bytes_sent_to()[static_cast<size_t>(peer)], bytes_to(counts, comm->rank(), peer, dtype));
    }
  });
}

TEST_P(AllToAllSizes, ThroughTheHostFromADevice) {
  const auto [size, counts, dtype] = GetParam();
  run_ranks(size, [counts = counts, dtype = dtype](std::shared_ptr<Communicator> comm) {
    check_exchange(*comm, counts, dtype, simulated_device());
  });
}

TEST_P(AllToAllSizes, CheckedOverABackendWithoutIdentities) {
  const auto [size, counts, dtype] = GetParam();
  testing::run_unchecked_ranks(size, [counts = counts, dtype = dtype](std::shared_ptr<Communicator> inner) {
    DebugOptions debug;
    debug.collective_check.level = CollectiveCheckLevel::kAlways;
    auto checked = CheckedCommunicator::over(std::make_shared<RecordingCommunicator>(inner),
                                             std::make_shared<CollectiveMonitor>(inner->rank(), debug), "world");
    check_exchange(*checked, counts, dtype, c10::kCPU);
    EXPECT_THAT(checked->monitor()->record().text(), HasSubstr("all-to-all of 'x'"));
  });
}

INSTANTIATE_TEST_SUITE_P(All, AllToAllSizes,
                         Combine(Values(1, 2, 3, 4), Values(&uneven, &only_rank_0_sends, &nothing, &many),
                                 Values(at::kFloat, at::kLong, at::kBFloat16)));

// Uses more send counts than fit into a header.
TEST(AllToAll, OverManyRanks) {
  run_ranks(26, [](std::shared_ptr<Communicator> comm) { check_exchange(*comm, uneven, at::kFloat, c10::kCPU); });
}

TEST(AllToAll, SeveralInFlight) {
  run_ranks(3, [](std::shared_ptr<Communicator> comm) {
    std::vector<std::unique_ptr<Work>> works;
    std::vector<at::Tensor> outputs;
    for (const Counts counts : {&uneven, &many, &only_rank_0_sends}) {
      const at::Tensor expected = received_by(counts, comm->rank(), 3, at::kFloat);
      outputs.push_back(torch::zeros_like(expected));
      works.push_back(comm->all_to_all(outputs.back(), sent_by(counts, comm->rank(), 3, at::kFloat),
                                       counts_of(counts, comm->rank(), 3), id("x")));
    }
    for (size_t i = works.size(); i-- > 0;) works[i]->wait();
    EXPECT_TRUE(torch::equal(outputs[0], received_by(uneven, comm->rank(), 3, at::kFloat)));
    EXPECT_TRUE(torch::equal(outputs[1], received_by(many, comm->rank(), 3, at::kFloat)));
  });
}

// Returns the error of each rank when rank 0 sends `extra` elements more than rank 1 expects.
std::vector<std::string> errors_of_wrong_counts(int64_t extra) {
  std::vector<std::string> errors(2);
  run_ranks(2, [&](std::shared_ptr<Communicator> comm) {
    SplitCounts counts = comm->rank() == 0 ? SplitCounts{{0, 4}, {0, 4}} : SplitCounts{{4, 0}, {4, 0}};
    if (comm->rank() == 0) counts.send[1] += extra;
    const auto input = torch::ones({4 + (comm->rank() == 0 ? extra : 0)});
    errors[static_cast<size_t>(comm->rank())] =
        error_of([&] { comm->all_to_all(torch::zeros({4}), input, counts, id("x"))->wait(); });
  });
  return errors;
}

TEST(AllToAll, CountsThatDifferAreNamed) {
  for (int64_t extra : {-4, -1, 1, 100000}) {
    const auto errors = errors_of_wrong_counts(extra);
    const std::string text = c10::str("rank 0 sends ", 4 + extra, " elements to rank 1, which expects 4");
    EXPECT_THAT(errors[1], HasSubstr(text));
    // The sender may already be done if it has nothing to send.
    EXPECT_THAT(errors[0], AnyOf(HasSubstr(text), StrEq(extra == -4 ? "no error" : text)));
  }
}

TEST(AllToAll, IdentitiesAreCompared) {
  std::vector<std::string> errors(2);
  run_ranks(2, [&](std::shared_ptr<Communicator> comm) {
    const auto dtype = comm->rank() == 0 ? at::kFloat : at::kInt;
    errors[static_cast<size_t>(comm->rank())] = error_of([&] {
      comm->all_to_all(torch::zeros({2}, dtype), torch::zeros({2}, dtype), {{1, 1}, {1, 1}}, id("x"))->wait();
    });
  });
  for (const auto& error : errors) EXPECT_THAT(error, AllOf(HasSubstr("of Float"), HasSubstr("of Int")));
}

TEST(AllToAll, ALostRankIsNamed) {
  std::vector<std::string> errors(2);
  run_ranks(2, [&](std::shared_ptr<Communicator> comm) {
    if (comm->rank() == 1) return;
    errors[0] =
        error_of([&] { comm->all_to_all(torch::zeros({2}), torch::zeros({2}), {{1, 1}, {1, 1}}, id("x"))->wait(); });
  });
  EXPECT_THAT(errors[0], HasSubstr("rank 1 is lost"));
}

TEST(AllToAll, ShapesThatDoNotFitAreNamed) {
  auto comm = make_fake_communicator(0, 2);
  const auto error = [&](at::Tensor output, at::Tensor input, const SplitCounts& counts) {
    return error_of([&] { comm->all_to_all(std::move(output), std::move(input), counts, id("x")); });
  };
  const auto two = torch::zeros({2});
  EXPECT_THAT(error(two, two, {{1}, {1, 1}}), HasSubstr("there are 1 send counts for a group of 2 ranks"));
  EXPECT_THAT(error(two, two, {{1, 1}, {1, 1, 0}}), HasSubstr("3 receive counts"));
  EXPECT_THAT(error(two, two, {{3, -1}, {1, 1}}), HasSubstr("the send count of rank 1 is -1"));
  EXPECT_THAT(error(two, two, {{1, 2}, {1, 1}}),
              HasSubstr("the input has 2 elements, but the send counts add up to 3"));
  EXPECT_THAT(error(two, two, {{1, 1}, {1, 0}}), HasSubstr("the output has 2 elements"));
  EXPECT_THAT(error(two, two, {{2, 0}, {1, 1}}), HasSubstr("rank 0 sends itself 2 elements and expects 1"));
  EXPECT_THAT(error(two.to(at::kHalf), two, {{1, 1}, {1, 1}}), HasSubstr("the output has dtype Half"));
  EXPECT_THAT(error(two.view({1, 2}), two, {{1, 1}, {1, 1}}), HasSubstr("1-D"));
}

TEST(AllToAll, TheFakeOneCopiesTheOwnPart) {
  auto comm = make_fake_communicator(1, 3);
  auto output = torch::full({4}, 9.f);
  comm->all_to_all(output, torch::tensor({1.f, 2.f, 3.f, 4.f, 5.f}), {{1, 2, 2}, {1, 2, 1}}, id("x"))->wait();
  EXPECT_TRUE(torch::equal(output, torch::tensor({0.f, 2.f, 3.f, 0.f})));
  EXPECT_EQ(comm->bytes_sent(), 12u);
}

TEST(AllToAll, CanBeRecordedAndLeftOut) {
  RecordingCommunicator recording(make_fake_communicator(0, 2));
  recording.all_to_all(torch::zeros({2}), torch::zeros({3}), {{1, 2}, {1, 1}}, id("x"))->wait();
  EXPECT_EQ(recording.count(CollectiveKind::kAllToAll), 1);
  EXPECT_EQ(to_string(recording.events()[1]), "wait 0: all-to-all of 'x' (forward, generation 0), 3 Float");
  FaultyCommunicator faulty(make_fake_communicator(0, 1), {{0, Fault::What::kSkip}});
  auto output = torch::zeros({1});
  faulty.all_to_all(output, torch::ones({1}), {{1}, {1}}, id("x"))->wait();
  EXPECT_EQ(output.item<float>(), 0.f);
}

}  // namespace
}  // namespace fsdp::comm::all_to_all_test
