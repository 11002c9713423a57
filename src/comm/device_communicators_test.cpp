// Tests communicators on tensors of a device: Gloo through host memory, on the simulated device and on a GPU; NCCL on
// one to four GPUs, as available.
#include <algorithm>

#include "base/device_stream.h"
#include "comm/meeting/meeting_point.h"
#include "comm/nccl/nccl_communicator.h"
#include "comm/testing/collectives.h"
#include "fsdp/backends.h"
#include "fsdp/communicator.h"
#include "support/devices/simulated_device.h"
#include "support/ranks/thread_ranks.h"

namespace fsdp::comm::device_communicators_test {
namespace {

using testing::id;
using testing::run_ranks;
using testing::simulated_device;

at::Tensor contribution(int rank, int64_t numel, at::ScalarType dtype) {
  return ((torch::arange(numel) * (rank + 3)) % 17 - 5 * rank).to(dtype);
}

// Runs a whole round of collectives with tensors on `device`, issued on one stream and waited for on another.
void check_collectives(Communicator& comm, c10::Device device, int64_t numel, at::ScalarType dtype) {
  const base::CurrentStreamGuard compute(base::take_stream(device));
  const auto aside = base::take_stream(device);
  const int size = comm.size();
  const auto whole = contribution(comm.rank(), numel * size, dtype).to(device);
  const auto own = whole.narrow(0, 0, numel).clone();
  auto gathered = torch::empty({numel * size}, whole.options());
  auto part = torch::empty({numel}, whole.options().dtype(at::kFloat));
  auto reduced = whole.clone();
  auto sent = contribution(comm.rank(), numel, dtype).to(device);
  std::vector<uint64_t> flags(1, uint64_t{1} << comm.rank());
  base::DeviceEvent made;
  made.record_current(device);

  std::vector<std::unique_ptr<Work>> works;
  {
    const base::CurrentStreamGuard guard(aside);
    made.block_current();
    works.push_back(comm.all_gather(gathered, own, id("g")));
    works.push_back(comm.reduce_scatter(part, whole, {0.5}, id("s"), &flags));
    works.push_back(comm.all_reduce(reduced, reduced, {0.25}, id("r")));
    works.push_back(comm.broadcast(sent, size - 1, id("b")));
  }
  for (auto& work : works) work->wait();

  std::vector<at::Tensor> shards;
  auto sum = torch::zeros({numel * size}, at::kDouble);
  for (int rank = 0; rank < size; ++rank) {
    shards.push_back(contribution(rank, numel * size, dtype).narrow(0, 0, numel));
    sum += contribution(rank, numel * size, at::kDouble);
  }
  EXPECT_TRUE(torch::equal(gathered.cpu(), torch::cat(shards)));
  EXPECT_TRUE(torch::equal(sent.cpu(), contribution(size - 1, numel, dtype)));
  EXPECT_TRUE(torch::equal(part.cpu(), (sum * 0.5).narrow(0, comm.rank() * numel, numel).to(at::kFloat)));
  EXPECT_TRUE(torch::equal(reduced.cpu(), (sum * 0.25).to(dtype)));
  EXPECT_EQ(flags[0], size == 1 ? flags[0] : (uint64_t{1} << size) - 1);
}

void check_all_shapes(Communicator& comm, c10::Device device) {
  for (int64_t numel : {1, 7, 1025}) {
    for (auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) check_collectives(comm, device, numel, dtype);
  }
}

TEST(GlooOnASimulatedDevice, ExchangesThroughTheHost) {
  for (int size : {2, 3, 4}) {
    run_ranks(size, [](std::shared_ptr<Communicator> comm) { check_all_shapes(*comm, simulated_device()); });
  }
}

TEST(GlooOnASimulatedDevice, TwinsAndSubgroupsDoToo) {
  run_ranks(3, [](std::shared_ptr<Communicator> comm) {
    check_collectives(*comm->twin(), simulated_device(), 5, at::kFloat);
    EXPECT_EQ(comm->twin(), comm->twin());
    const std::vector<int> members = comm->rank() < 2 ? std::vector<int>{0, 1} : std::vector<int>{2};
    auto group = comm->subgroup(members, id("pair"));
    if (group->size() == 2) check_collectives(*group, simulated_device(), 5, at::kFloat);
    EXPECT_GT(comm->bytes_sent(), 0u);
  });
}

// The fake communicator has no transfers to wait for, but copies on the stream that is current in the call.
TEST(FakeCommunicatorOnADevice, IsWaitedForByTheCurrentStream) {
  const auto device = simulated_device();
  const base::CurrentStreamGuard compute(base::take_stream(device));
  const auto aside = base::take_stream(device);
  auto comm = make_fake_communicator(1, 2);
  auto input = torch::empty({1000}, device).fill_(0);
  auto gathered = torch::empty({2000}, device).fill_(0);
  auto part = torch::empty({500}, device).fill_(0);
  base::DeviceEvent made;
  made.record_current(device);
  std::unique_ptr<Work> gather;
  std::unique_ptr<Work> reduction;
  {
    const base::CurrentStreamGuard guard(aside);
    made.block_current();
    for (int i = 0; i < 5; ++i) input.fill_(i);
    gather = comm->all_gather(gathered, input, id("g"));
    reduction = comm->reduce_scatter(part, input, {0.5}, id("r"));
  }
  gather->wait();
  EXPECT_TRUE(torch::equal(gathered.cpu(), torch::full({2000}, 4.f)));
  reduction->wait();
  EXPECT_TRUE(torch::equal(part.cpu(), torch::full({500}, 2.f)));
}

TEST(GlooOnAGpu, ExchangesThroughTheHost) {
  if (base::device_count(c10::kCUDA) == 0) GTEST_SKIP() << "no CUDA device";
  for (int size : {1, 2, 3, 4}) {  // all of them on one GPU
    run_ranks(size, [](std::shared_ptr<Communicator> comm) { check_all_shapes(*comm, {c10::kCUDA, 0}); });
  }
}

void run_on_gpus(int size, const NcclOptions& options = {}) {
  const auto point = make_in_memory_meeting_point();
  run_ranks(size, [&](std::shared_ptr<Communicator> rank) {
    const c10::Device device(c10::kCUDA, static_cast<c10::DeviceIndex>(rank->rank()));
    auto comm = make_nccl_communicator(point, rank->rank(), size, options, {device, ""});
    EXPECT_EQ(comm->backend(), "nccl");
    check_all_shapes(*comm, device);
    auto twin = comm->twin();
    check_all_shapes(*twin, device);
    EXPECT_EQ(comm->all_gather_bytes("x", id("b")).size(), static_cast<size_t>(size));
    comm->barrier(id("end"));
  });
}

class NcclOnGpus : public ::testing::Test {
 protected:
  void SetUp() override {
    if (base::device_count(c10::kCUDA) == 0) GTEST_SKIP() << "no CUDA device";
    if (!nccl_is_built_in()) GTEST_SKIP() << "built without NCCL's headers";
  }
};

TEST_F(NcclOnGpus, OneRank) { run_on_gpus(1); }

TEST_F(NcclOnGpus, OneRankThatDoesNotBlock) {
  NcclOptions options;
  options.blocking = false;
  run_on_gpus(1, options);
}

TEST_F(NcclOnGpus, ARankForEachGpu) {
  const int gpus = base::device_count(c10::kCUDA);
  if (gpus < 2) GTEST_SKIP() << "one CUDA device only";
  for (int size = 2; size <= std::min(gpus, 4); ++size) run_on_gpus(size);
}

TEST_F(NcclOnGpus, PublicFactory) {
  auto comm = make_nccl_communicator(RankEnvironment{});
  check_all_shapes(*comm, {c10::kCUDA, 0});
}

}  // namespace
}  // namespace fsdp::comm::device_communicators_test
