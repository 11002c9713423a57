// Tests the fake communicator and the wrappers that record and disturb.
#include "comm/collective_shapes.h"
#include "comm/testing/faulty_communicator.h"
#include "comm/testing/recording_communicator.h"
#include "fsdp/backends.h"
#include "fsdp/communicator.h"

namespace fsdp::comm::wrappers_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const CollectiveId kUnit{"layer.3", 7, Pass::kForward};

TEST(FakeCommunicator, DoesTheLocalPart) {
  auto comm = make_fake_communicator(2, 4);
  EXPECT_EQ(comm->rank(), 2);
  EXPECT_EQ(comm->size(), 4);
  EXPECT_EQ(comm->backend(), "fake");

  auto gathered = torch::zeros({12});
  comm->all_gather(gathered, torch::tensor({1.f, 2.f, 3.f}), kUnit)->wait();
  EXPECT_TRUE(torch::equal(gathered, torch::tensor({1.f, 2.f, 3.f}).repeat(4)));
  EXPECT_EQ(comm->bytes_sent(), 3u * 12);

  auto part = torch::zeros({2}, at::kBFloat16);
  comm->reduce_scatter(part, torch::arange(8).to(at::kFloat), {0.5}, kUnit)->wait();
  EXPECT_TRUE(torch::equal(part, torch::tensor({2.f, 2.5f}).to(at::kBFloat16)));
  EXPECT_EQ(comm->bytes_sent(), 3u * 12 + 3u * 8);

  EXPECT_THAT(comm->all_gather_bytes("x", kUnit), ElementsAre("x", "x", "x", "x"));
}

TEST(FakeCommunicator, SendsToNobodyAndReceivesZeros) {
  auto comm = make_fake_communicator(2, 4);
  comm->send(torch::ones({2, 3}), 3, kUnit)->wait();
  EXPECT_EQ(comm->bytes_sent_to(), (std::vector<uint64_t>{0, 0, 0, 24}));
  const auto output = torch::ones({2, 3});
  comm->recv(output, 1, kUnit)->wait();
  EXPECT_TRUE(torch::equal(output, torch::zeros({2, 3})));
}

TEST(FakeCommunicator, RejectsARankOutsideTheGroup) {
  EXPECT_THROW(make_fake_communicator(4, 4), c10::Error);
  EXPECT_THROW(make_fake_communicator(-1, 4), c10::Error);
}

class Shapes : public ::testing::Test {
 protected:
  template <typename Action>
  std::string error_of(Action action) {
    try {
      action();
    } catch (const c10::Error& error) {
      return error.what_without_backtrace();
    }
    return "no error";
  }
  std::shared_ptr<Communicator> comm = make_fake_communicator(0, 2);
};

TEST_F(Shapes, ThatDoNotFitAreNamed) {
  EXPECT_THAT(error_of([&] { comm->all_gather(torch::zeros({5}), torch::zeros({2}), kUnit); }),
              HasSubstr("all-gather of 'layer.3' (forward, generation 7): the output has 5 elements, expected 2 ranks "
                        "times 2"));
  EXPECT_THAT(error_of([&] { comm->reduce_scatter(torch::zeros({2}), torch::zeros({5}), {}, kUnit); }),
              HasSubstr("the input has 5 elements"));
  EXPECT_THAT(error_of([&] { comm->all_reduce(torch::zeros({2}), torch::zeros({5}), {}, kUnit); }),
              HasSubstr("2 elements"));
  EXPECT_THAT(error_of([&] { comm->all_gather(torch::zeros({4}), torch::zeros({2}, at::kHalf), kUnit); }),
              HasSubstr("Half"));
  EXPECT_THAT(error_of([&] { comm->all_gather(torch::zeros({2, 2}), torch::zeros({2}), kUnit); }), HasSubstr("[2, 2]"));
  EXPECT_THAT(error_of([&] { comm->all_gather(torch::zeros({8}).slice(0, 0, 8, 2), torch::zeros({2}), kUnit); }),
              HasSubstr("contiguous"));
  EXPECT_THAT(error_of([&] { comm->all_reduce(torch::zeros({2}), torch::zeros({2}, at::kLong), {}, kUnit); }),
              HasSubstr("cannot reduce Long into Float"));
  EXPECT_THAT(error_of([&] { comm->broadcast(torch::zeros({2}), 2, kUnit); }), HasSubstr("there is no rank 2"));
  EXPECT_THAT(error_of([&] { comm->all_gather(at::Tensor(), torch::zeros({2}), kUnit); }), HasSubstr("undefined"));
}

std::vector<std::string> log_of(const RecordingCommunicator& comm) {
  std::vector<std::string> lines;
  for (const auto& event : comm.events()) lines.push_back(to_string(event));
  return lines;
}

TEST(RecordingCommunicator, KeepsTheOrderOfIssuesAndWaits) {
  RecordingCommunicator comm(make_fake_communicator(0, 2));
  auto first = comm.all_gather(torch::zeros({4}), torch::zeros({2}), kUnit);
  auto tensor = torch::zeros({6}, at::kBFloat16);
  auto second = comm.reduce_scatter(torch::zeros({3}), tensor, {}, {"head", 1, Pass::kReduce});
  second->wait();
  first->wait();
  comm.all_reduce(tensor, tensor, {}, {"norm", 0, Pass::kUser});
  comm.all_gather_bytes("abc", {"names", 0, Pass::kSetup});
  comm.broadcast(tensor, 0, {"names", 1, Pass::kSetup});
  EXPECT_THAT(log_of(comm), ElementsAre("issue 0: all-gather of 'layer.3' (forward, generation 7), 4 Float",
                                        "issue 1: reduce-scatter of 'head' (reduce, generation 1), 6 BFloat16",
                                        "wait 1: reduce-scatter of 'head' (reduce, generation 1), 6 BFloat16",
                                        "wait 0: all-gather of 'layer.3' (forward, generation 7), 4 Float",
                                        "issue 2: all-reduce of 'norm' (user, generation 0), 6 BFloat16",
                                        "issue 3: all-gather of bytes of 'names' (setup, generation 0), 3 Byte",
                                        "wait 3: all-gather of bytes of 'names' (setup, generation 0), 3 Byte",
                                        "issue 4: broadcast of 'names' (setup, generation 1), 6 BFloat16"));
  EXPECT_EQ(comm.count(CollectiveKind::kAllGather), 1);
  EXPECT_EQ(comm.bytes_sent(), 8u + 6u + 12u + 3u + 12u);
  comm.clear();
  EXPECT_TRUE(comm.events().empty());
}

TEST(FaultyCommunicator, SkipsOnlyTheChosenCollective) {
  FaultyCommunicator comm(make_fake_communicator(0, 2), {{1, Fault::What::kSkip}});
  std::vector<float> filled;
  for (int i = 0; i < 3; ++i) {
    auto output = torch::zeros({2});
    comm.all_gather(output, torch::ones({1}), kUnit)->wait();
    filled.push_back(output.sum().item<float>());
  }
  EXPECT_THAT(filled, ElementsAre(2.f, 0.f, 2.f));
}

TEST(FaultyCommunicator, FailsWhereItIsTold) {
  FaultyCommunicator comm(make_fake_communicator(0, 2),
                          {{0, Fault::What::kFailIssue, {}, "at issue"}, {1, Fault::What::kFailWait, {}, "at wait"}});
  auto tensor = torch::ones({2});
  EXPECT_THROW(comm.all_reduce(tensor, tensor, {}, kUnit), CommunicationError);
  auto work = comm.all_reduce(tensor, tensor, {}, kUnit);
  EXPECT_THROW(work->wait(), CommunicationError);
  EXPECT_NO_THROW(comm.all_reduce(tensor, tensor, {}, kUnit)->wait());
}

TEST(Parts, CoverAllElementsOnceInOrder) {
  for (int64_t numel : {0, 1, 2, 3, 5, 8, 1001}) {
    for (int size : {1, 2, 3, 4, 7}) {
      int64_t end = 0;
      for (int rank = 0; rank < size; ++rank) {
        const auto part = part_of(numel, rank, size);
        EXPECT_EQ(part.begin, end);
        EXPECT_LE(std::abs(part.numel - numel / size), 1);
        end += part.numel;
      }
      EXPECT_EQ(end, numel);
    }
  }
}

}  // namespace
}  // namespace fsdp::comm::wrappers_test
