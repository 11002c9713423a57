// Tests how the communicator over NCCL uses NCCL's functions: results, scales, flags, groups, streams. The library is a
// fake one (tests/tools/fake_nccl.h); device_communicators_test.cpp uses the real one if there is a GPU.
#include "comm/nccl/nccl_communicator.h"

#include <atomic>
#include <thread>

#include "base/device_stream.h"
#include "comm/testing/collectives.h"
#include "fsdp/backends.h"
#include "support/devices/simulated_device.h"
#include "support/ranks/nccl_ranks.h"

namespace fsdp::comm::nccl_communicator_test {
namespace {

using ::testing::AllOf;
using ::testing::Combine;
using testing::contribution;
using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;
using testing::id;
using testing::run_nccl_ranks;
using testing::simulated_device;
using testing::sum_of_contributions;
using ::testing::Values;
using testing::WithFakeNccl;

enum class Where { kCpu, kSimulatedDevice };

class NcclSizes : public WithFakeNccl,
                  public ::testing::WithParamInterface<std::tuple<Where, int, int64_t, at::ScalarType>> {
 protected:
  c10::Device device() const {
    return std::get<0>(GetParam()) == Where::kCpu ? c10::Device(c10::kCPU) : simulated_device();
  }
  int size() const { return std::get<1>(GetParam()); }
  int64_t numel() const { return std::get<2>(GetParam()); }
  at::ScalarType dtype() const { return std::get<3>(GetParam()); }

  at::Tensor empty(int64_t count, at::ScalarType type) const {
    return torch::empty({count}, at::TensorOptions(type).device(device())).fill_(99);
  }
};

TEST_P(NcclSizes, AllGather) {
  run_nccl_ranks(size(), device(), [&](std::shared_ptr<Communicator> comm) {
    EXPECT_EQ(comm->backend(), "nccl");
    std::vector<at::Tensor> all;
    for (int rank = 0; rank < size(); ++rank) all.push_back(contribution(rank, numel(), dtype()));
    const auto own = all[static_cast<size_t>(comm->rank())].to(device());
    auto output = empty(size() * numel(), dtype());
    comm->all_gather(output, own, id("out"))->wait();
    auto in_place = empty(size() * numel(), dtype());
    auto slice = in_place.narrow(0, comm->rank() * numel(), numel());
    slice.copy_(own);
    comm->all_gather(in_place, slice, id("in"))->wait();
    EXPECT_TRUE(torch::equal(output.cpu(), torch::cat(all)));
    EXPECT_TRUE(torch::equal(in_place.cpu(), torch::cat(all)));
    EXPECT_EQ(comm->bytes_sent(), 2 * (size() - 1) * numel() * output.element_size());
  });
}

TEST_P(NcclSizes, Broadcast) {
  run_nccl_ranks(size(), device(), [&](std::shared_ptr<Communicator> comm) {
    for (int root = 0; root < size(); ++root) {
      auto tensor = contribution(comm->rank(), numel(), dtype()).to(device());
      comm->broadcast(tensor, root, id("b"))->wait();
      EXPECT_TRUE(torch::equal(tensor.cpu(), contribution(root, numel(), dtype())));
    }
    EXPECT_EQ(comm->bytes_sent(), (size() - 1) * numel() * c10::elementSize(dtype()));
  });
}

// Rank a sends numel() + a * b elements to rank b, but none to the rank before it.
TEST_P(NcclSizes, AllToAll) {
  const auto count = [&](int from, int to) {
    return (to + 1) % size() == from && size() > 1 ? 0 : numel() + from * to;
  };
  run_nccl_ranks(size(), device(), [&](std::shared_ptr<Communicator> comm) {
    SplitCounts counts;
    std::vector<at::Tensor> sent, expected;
    for (int peer = 0; peer < size(); ++peer) {
      counts.send.push_back(count(comm->rank(), peer));
      counts.receive.push_back(count(peer, comm->rank()));
      sent.push_back(contribution(comm->rank() + 2 * peer, counts.send.back(), dtype()));
      expected.push_back(contribution(peer + 2 * comm->rank(), counts.receive.back(), dtype()));
    }
    auto output = empty(torch::cat(expected).numel(), dtype());
    comm->all_to_all(output, torch::cat(sent).to(device()), counts, id("a"))->wait();
    EXPECT_TRUE(torch::equal(output.cpu(), torch::cat(expected)));
    const auto own = counts.send[static_cast<size_t>(comm->rank())];
    EXPECT_EQ(comm->bytes_sent(), (torch::cat(sent).numel() - own) * c10::elementSize(dtype()));
  });
}

// Each rank passes on what it receives from the rank before it.
TEST_P(NcclSizes, Messages) {
  run_nccl_ranks(size(), device(), [&](std::shared_ptr<Communicator> comm) {
    auto tensor = contribution(7, numel(), dtype()).to(device());
    if (comm->rank() > 0) {
      tensor.zero_();
      comm->recv(tensor, comm->rank() - 1, id("m"))->wait();
    }
    const bool sends = comm->rank() + 1 < size();
    if (sends) comm->send(tensor, comm->rank() + 1, id("m"))->wait();
    EXPECT_TRUE(torch::equal(tensor.cpu(), contribution(7, numel(), dtype())));
    EXPECT_EQ(comm->bytes_sent(), sends ? numel() * c10::elementSize(dtype()) : 0u);
  });
}

TEST_P(NcclSizes, ReduceScatter) {
  run_nccl_ranks(size(), device(), [&](std::shared_ptr<Communicator> comm) {
    const auto input = contribution(comm->rank(), numel() * size(), dtype()).to(device());
    auto same = empty(numel(), dtype());
    auto wide = empty(numel(), at::kDouble);
    comm->reduce_scatter(same, input, {0.5}, id("same"))->wait();
    comm->reduce_scatter(wide, input, {0.5}, id("wide"))->wait();
    auto expected = sum_of_contributions(size(), numel() * size(), 0.5).narrow(0, comm->rank() * numel(), numel());
    EXPECT_TRUE(torch::equal(same.cpu(), expected.to(dtype())));
    EXPECT_TRUE(torch::equal(wide.cpu(), expected));
    EXPECT_TRUE(torch::equal(input.cpu(), contribution(comm->rank(), numel() * size(), dtype())));
  });
}

TEST_P(NcclSizes, AllReduce) {
  run_nccl_ranks(size(), device(), [&](std::shared_ptr<Communicator> comm) {
    auto tensor = contribution(comm->rank(), numel(), dtype()).to(device());
    auto same = empty(numel(), dtype());
    comm->all_reduce(same, tensor, {0.25}, id("same"))->wait();
    auto wide = empty(numel(), at::kDouble);
    comm->all_reduce(wide, tensor.clone(), {0.25}, id("wide"))->wait();
    comm->all_reduce(tensor, tensor, {0.25}, id("in place"))->wait();
    const auto expected = sum_of_contributions(size(), numel(), 0.25);
    EXPECT_TRUE(torch::equal(same.cpu(), expected.to(dtype())));
    EXPECT_TRUE(torch::equal(wide.cpu(), expected));
    EXPECT_TRUE(torch::equal(tensor.cpu(), expected.to(dtype())));
  });
}

INSTANTIATE_TEST_SUITE_P(All, NcclSizes,
                         Combine(Values(Where::kCpu, Where::kSimulatedDevice), Values(1, 2, 3, 4),
                                 Values<int64_t>(0, 1, 7, 1025), Values(at::kFloat, at::kBFloat16, at::kHalf)));

using Nccl = WithFakeNccl;

// Different sizes on different ranks do not count as different collectives.
TEST_F(Nccl, AllToAllIsComparedWithoutItsSizes) {
  NcclOptions options;
  options.compare_every_collective = true;
  const auto exchange = [](std::shared_ptr<Communicator> comm) {
    const bool first = comm->rank() == 0;
    const SplitCounts counts = first ? SplitCounts{{0, 3}, {0, 1}} : SplitCounts{{1, 0}, {3, 0}};
    const auto input = torch::full({first ? 3 : 1}, comm->rank() + 5.f);
    auto output = torch::zeros({first ? 1 : 3});
    comm->all_to_all(output, input, counts, id("a"))->wait();
    EXPECT_TRUE(torch::equal(output, torch::full({first ? 1 : 3}, first ? 6.f : 5.f)));
  };
  run_nccl_ranks(2, c10::kCPU, exchange, options);
}

TEST_F(Nccl, MessagesThatDifferAreNamedIfComparedByTheHosts) {
  NcclOptions options;
  options.compare_every_collective = true;
  const auto pass_on = [](const CollectiveId& received, int64_t numel) {
    return [=](std::shared_ptr<Communicator> comm) {
      const auto tensor = torch::ones({numel});
      if (comm->rank() == 0) comm->send(torch::ones({3}), 1, id("x"));
      if (comm->rank() == 1) comm->recv(tensor, 0, received)->wait();
    };
  };
  run_nccl_ranks(2, c10::kCPU, pass_on(id("x"), 3), options);
  const std::string error = error_of([&] { run_nccl_ranks(2, c10::kCPU, pass_on(id("y"), 3), options); });
  EXPECT_THAT(error, AllOf(HasSubstr("rank 1 receives message of 'y: Float of sizes [3]'"),
                           HasSubstr("while rank 0 sends message of 'x: Float of sizes [3]'")));
}

TEST_F(Nccl, IntegersAreAddedAndDoublesScaled) {
  run_nccl_ranks(3, c10::kCPU, [](std::shared_ptr<Communicator> comm) {
    for (auto dtype : {at::kByte, at::kChar, at::kInt, at::kLong, at::kDouble}) {
      auto tensor = torch::full({5}, comm->rank() + 1, dtype);
      comm->all_reduce(tensor, tensor, {}, id("n"))->wait();
      EXPECT_TRUE(torch::equal(tensor, torch::full({5}, 6, dtype))) << dtype;
    }
    auto thirds = torch::full({5}, 1.0, at::kDouble);
    comm->all_reduce(thirds, thirds, {1.0 / 3}, id("d"))->wait();
    EXPECT_NEAR(thirds[4].item<double>(), 1.0, 1e-15);
    auto tensor = torch::ones({5}, at::kLong);
    EXPECT_THROW(comm->all_reduce(tensor, tensor, {0.5}, id("n")), c10::Error);
    auto flags = torch::ones({5}, at::kBool);
    EXPECT_THROW(comm->all_reduce(flags, flags, {}, id("b")), c10::Error);
  });
}

// A third is not representable in bf16 or fp16: multiplying by the nearest value would make means too large by 0.2 %.
TEST_F(Nccl, ScalesThatNarrowDtypesDoNotHoldAreExact) {
  for (auto device : {c10::Device(c10::kCPU), simulated_device()}) {
    run_nccl_ranks(3, device, [&](std::shared_ptr<Communicator> comm) {
      for (auto dtype : {at::kBFloat16, at::kHalf}) {
        auto mean = torch::empty({7}, device);
        comm->all_reduce(mean, torch::full({7}, 1.75, dtype).to(device), {1.0 / 3}, id("mean"))->wait();
        EXPECT_NEAR(mean.cpu()[6].item<float>(), 1.75f, 1e-6f) << dtype;
        auto part = torch::empty({7}, at::TensorOptions(dtype).device(device));
        comm->reduce_scatter(part, torch::full({21}, 1.75, dtype).to(device), {5.0}, id("times five"))->wait();
        EXPECT_EQ(part.cpu()[6].item<float>(), 26.25f) << dtype;
      }
    });
  }
}

TEST_F(Nccl, MeansOfHalvesDoNotOverflow) {
  run_nccl_ranks(3, c10::kCPU, [](std::shared_ptr<Communicator> comm) {
    auto tensor = torch::full({3}, 40000, at::kHalf);
    comm->all_reduce(tensor, tensor, {1.0 / 3}, id("mean"))->wait();
    EXPECT_EQ(tensor[0].item<float>(), 40000.f);
  });
}

TEST_F(Nccl, FlagsAreOredOverTheRanks) {
  for (int size : {1, 2, 3, 4}) {
    for (size_t words : {1, 24, 77}) {
      run_nccl_ranks(size, simulated_device(), [&](std::shared_ptr<Communicator> comm) {
        auto tensor = torch::empty({size * 5}, simulated_device()).fill_(1);
        for (int round = 0; round < 3; ++round) {
          std::vector<uint64_t> scattered(words, uint64_t{1} << comm->rank());
          std::vector<uint64_t> reduced = scattered;
          auto part = torch::empty({5}, simulated_device());
          auto first = comm->reduce_scatter(part, tensor, {}, id("s"), &scattered);
          auto second = comm->all_reduce(tensor, tensor, {1.0 / size}, id("r"), &reduced);
          second->wait();
          first->wait();
          const std::vector<uint64_t> all(words, (uint64_t{1} << size) - 1);
          EXPECT_EQ(scattered, all);
          EXPECT_EQ(reduced, all);
          EXPECT_TRUE(torch::equal(part.cpu(), torch::full({5}, 1.f * size)));
        }
      });
    }
  }
}

// Neither a gather nor flags that nothing can change make a rank's host wait for the others.
TEST_F(Nccl, TheHostWaitsForNobodyWhereItNeedNot) {
  std::atomic<bool> rank_0_is_done = false;
  run_nccl_ranks(2, simulated_device(), [&](std::shared_ptr<Communicator> comm) {
    while (comm->rank() == 1 && !rank_0_is_done) std::this_thread::yield();
    const auto own = torch::empty({4}, simulated_device()).fill_(comm->rank());
    auto all = torch::empty({8}, simulated_device());
    auto part = torch::empty({2}, simulated_device());
    std::vector<uint64_t> flags(2, comm->rank() == 0 ? ~uint64_t{0} : 1);
    comm->all_gather(all, own, id("g"))->wait();
    comm->reduce_scatter(part, own, {}, id("r"), &flags)->wait();
    rank_0_is_done = true;
    EXPECT_THAT(flags, ElementsAre(~uint64_t{0}, ~uint64_t{0}));
    EXPECT_TRUE(torch::equal(part.cpu(), torch::ones({2})));
    EXPECT_TRUE(torch::equal(all.cpu(), torch::tensor({0.f, 0.f, 0.f, 0.f, 1.f, 1.f, 1.f, 1.f})));
    // The exchange that was left for later does not disturb the next one.
    std::vector<uint64_t> more(1, uint64_t{1} << comm->rank());
    comm->reduce_scatter(part, own, {}, id("later"), &more)->wait();
    EXPECT_THAT(more, ElementsAre(3));
  });
}

// The caller chooses the stream on which a collective is issued, and the stream that is current in wait().
TEST_F(Nccl, StreamsAreThoseThatAreCurrent) {
  run_nccl_ranks(2, simulated_device(), [](std::shared_ptr<Communicator> comm) {
    const auto device = simulated_device();
    const auto aside = base::take_stream(device);
    auto input = torch::empty({1000}, device);
    auto output = torch::empty({2000}, device);
    for (int round = 0; round < 5; ++round) {
      std::unique_ptr<Work> work;
      for (int i = 0; i < 3; ++i) input.fill_(10 * round + i + 100 * comm->rank());
      base::DeviceEvent filled;
      filled.record_current(device);
      {
        base::CurrentStreamGuard guard(aside);
        filled.block_current();
        work = comm->all_gather(output, input, id("g"));
      }
      work->wait();
      const auto result = output.clone().cpu();
      const float value = 10.f * round + 2;
      EXPECT_TRUE(torch::equal(result, torch::cat({torch::full({1000}, value), torch::full({1000}, value + 100)})));
    }
  });
}

TEST_F(Nccl, WorkThatIsDroppedIsWaitedForByTheStream) {
  run_nccl_ranks(2, simulated_device(), [](std::shared_ptr<Communicator> comm) {
    const auto device = simulated_device();
    const auto aside = base::take_stream(device);
    auto input = torch::empty({1000}, device);
    auto output = torch::empty({2000}, device);
    base::DeviceEvent made;
    made.record_current(device);
    {
      base::CurrentStreamGuard guard(aside);
      made.block_current();
      for (int i = 0; i < 5; ++i) input.fill_(i);
    }
    std::unique_ptr<Work> work;
    {
      base::CurrentStreamGuard guard(aside);
      work = comm->all_gather(output, input, id("g"));
    }
    work.reset();
    EXPECT_TRUE(torch::equal(output.cpu(), torch::full({2000}, 4.f)));
  });
}

TEST_F(Nccl, SubgroupsAndTwinsAreGroupsOfTheirOwn) {
  run_nccl_ranks(4, simulated_device(), [](std::shared_ptr<Communicator> world) {
    const std::vector<int> members = world->rank() < 3 ? std::vector<int>{0, 1, 2} : std::vector<int>{3};
    auto group = world->subgroup(members, id("three and one"));
    auto twin = group->twin();
    EXPECT_EQ(twin, group->twin());
    EXPECT_EQ(group->size(), static_cast<int>(members.size()));
    auto sum = torch::empty({3}, simulated_device()).fill_(world->rank());
    auto sum_of_twin = sum.clone();
    auto first = group->all_reduce(sum, sum, {}, id("a"));
    auto second = twin->all_reduce(sum_of_twin, sum_of_twin, {}, id("b"));
    second->wait();
    first->wait();
    EXPECT_TRUE(torch::equal(sum.cpu(), torch::full({3}, 3.f)));
    EXPECT_TRUE(torch::equal(sum_of_twin.cpu(), torch::full({3}, 3.f)));
    EXPECT_EQ(group->all_gather_bytes(std::to_string(world->rank()), id("names")).size(), members.size());
    world->barrier(id("end"));
  });
}

TEST_F(Nccl, PartitionsAreCheckedOnAllRanks) {
  run_nccl_ranks(2, c10::kCPU, [](std::shared_ptr<Communicator> world) {
    const std::vector<int> members = world->rank() == 0 ? std::vector<int>{0, 1} : std::vector<int>{1};
    EXPECT_THROW(world->subgroup(members, id("odd")), c10::Error);
  });
}

TEST_F(Nccl, CommunicatorsThatDoNotBlockArePolled) {
  fake.set_in_progress(3);
  NcclOptions options;
  options.blocking = false;
  run_nccl_ranks(
      3, c10::kCPU,
      [](std::shared_ptr<Communicator> comm) {
        auto tensor = torch::ones({7});
        for (int i = 0; i < 3; ++i) comm->all_reduce(tensor, tensor, {0.5}, id("r"))->wait();
        EXPECT_EQ(tensor[0].item<float>(), 3.375f);
      },
      options);
}

}  // namespace
}  // namespace fsdp::comm::nccl_communicator_test
