// Tests several collectives in flight at once, waited for in any order, with flags.
#include <algorithm>
#include <numeric>
#include <random>

#include "comm/collective_shapes.h"
#include "comm/testing/stress.h"
#include "fsdp/communicator.h"
#include "support/ranks/thread_ranks.h"

namespace fsdp::comm::concurrency_test {
namespace {

using testing::run_ranks;

CollectiveId id(const std::string& name, uint64_t generation) { return {name, generation, Pass::kUser}; }

// One collective in flight, and its expected result.
struct InFlight {
  std::unique_ptr<Work> work;
  at::Tensor output;
  at::Tensor expected;
};

at::Tensor contribution(int rank, uint64_t generation, int64_t numel) {
  return (torch::arange(numel) % 13 + static_cast<int64_t>(generation) * 7 + rank * 3).to(at::kFloat);
}

at::Tensor sum(int size, uint64_t generation, int64_t numel) {
  auto total = torch::zeros({numel});
  for (int rank = 0; rank < size; ++rank) total += contribution(rank, generation, numel);
  return total;
}

InFlight issue_gather(Communicator& comm, uint64_t generation, int64_t n) {
  std::vector<at::Tensor> all;
  for (int rank = 0; rank < comm.size(); ++rank) all.push_back(contribution(rank, generation, n));
  InFlight flight{nullptr, torch::zeros({n * comm.size()}), torch::cat(all)};
  flight.work = comm.all_gather(flight.output, contribution(comm.rank(), generation, n), id("gather", generation));
  return flight;
}

InFlight issue_scatter(Communicator& comm, uint64_t generation, int64_t n) {
  const auto numel = n * comm.size();
  InFlight flight{nullptr, torch::zeros({n}), sum(comm.size(), generation, numel).narrow(0, comm.rank() * n, n)};
  flight.work =
      comm.reduce_scatter(flight.output, contribution(comm.rank(), generation, numel), {}, id("scatter", generation));
  return flight;
}

InFlight issue_reduce(Communicator& comm, uint64_t generation, int64_t n) {
  auto tensor = contribution(comm.rank(), generation, n);
  InFlight flight{nullptr, tensor, sum(comm.size(), generation, n)};
  flight.work = comm.all_reduce(tensor, tensor, {}, id("reduce", generation));
  return flight;
}

// Issues the same collectives on all ranks, but each rank waits in an order of its own.
void random_rounds(Communicator& comm, int rounds) {
  std::mt19937 shared(17);
  std::mt19937 own(static_cast<unsigned>(comm.rank()) + 100);
  uint64_t generation = 0;
  for (int round = 0; round < rounds; ++round) {
    std::vector<InFlight> flights;
    for (int i = 0; i < 7; ++i, ++generation) {
      const auto kind = shared() % 3;
      const auto n = static_cast<int64_t>(shared() % 40000);
      flights.push_back(kind == 0   ? issue_gather(comm, generation, n)
                        : kind == 1 ? issue_scatter(comm, generation, n)
                                    : issue_reduce(comm, generation, n));
    }
    std::shuffle(flights.begin(), flights.end(), own);
    for (auto& flight : flights) flight.work->wait();
    for (auto& flight : flights) EXPECT_TRUE(torch::equal(flight.output, flight.expected));
  }
}

TEST(Concurrency, WaitsInAnyOrderOnEachRank) {
  for (int size : {2, 3, 4}) run_ranks(size, [](std::shared_ptr<Communicator> comm) { random_rounds(*comm, 6); });
}

TEST(Concurrency, RanksThatComeEarlyAndLate) {
  for (int size : {2, 3, 4}) {
    run_ranks(size, [size](std::shared_ptr<Communicator> comm) {
      testing::Stress stress(*comm, static_cast<unsigned>(size));
      for (int round = 0; round < 200; ++round) stress.round();
    });
  }
}

// A large reduce-scatter stays in flight while gathers are issued and finished.
TEST(Concurrency, GathersOvertakeAReduceScatter) {
  run_ranks(2, [](std::shared_ptr<Communicator> comm) {
    auto scatter = issue_scatter(*comm, 0, 1 << 20);
    for (uint64_t generation = 1; generation < 6; ++generation) {
      auto gather = issue_gather(*comm, generation, 1000);
      gather.work->wait();
      EXPECT_TRUE(torch::equal(gather.output, gather.expected));
    }
    scatter.work->wait();
    EXPECT_TRUE(torch::equal(scatter.output, scatter.expected));
  });
}

// Issues far more collectives than a rank has posts for in shared memory.
TEST(Concurrency, OneOfEachKindStaysInFlightAmongHundreds) {
  for (int size : {2, 3, 4}) {
    run_ranks(size, [](std::shared_ptr<Communicator> comm) {
      std::vector<InFlight> early;
      early.push_back(issue_gather(*comm, 0, 100));
      early.push_back(issue_scatter(*comm, 1, 100));
      early.push_back(issue_reduce(*comm, 2, 100));
      for (uint64_t generation = 3; generation < 300; ++generation) {
        auto gather = issue_gather(*comm, generation, 10);
        gather.work->wait();
        EXPECT_TRUE(torch::equal(gather.output, gather.expected));
      }
      for (InFlight& flight : early) {
        flight.work->wait();
        EXPECT_TRUE(torch::equal(flight.output, flight.expected));
      }
    });
  }
}

TEST(Concurrency, HundredsAreInFlight) {
  for (int size : {2, 3, 4}) {
    run_ranks(size, [](std::shared_ptr<Communicator> comm) {
      std::vector<InFlight> flights;
      for (uint64_t generation = 0; generation < 300; ++generation) {
        flights.push_back(generation % 3 == 0   ? issue_gather(*comm, generation, 10)
                          : generation % 3 == 1 ? issue_scatter(*comm, generation, 10)
                                                : issue_reduce(*comm, generation, 10));
      }
      std::mt19937 own(static_cast<unsigned>(comm->rank()));
      std::shuffle(flights.begin(), flights.end(), own);
      for (InFlight& flight : flights) {
        flight.work->wait();
        EXPECT_TRUE(torch::equal(flight.output, flight.expected));
      }
    });
  }
}

// A dropped collective counts as finished.
TEST(Concurrency, HundredsAreDropped) {
  run_ranks(3, [](std::shared_ptr<Communicator> comm) {
    for (uint64_t generation = 0; generation < 300; ++generation) (void)issue_gather(*comm, generation, 10);
    auto gather = issue_gather(*comm, 300, 10);
    gather.work->wait();
    EXPECT_TRUE(torch::equal(gather.output, gather.expected));
  });
}

// A collective ends on one rank even if the other rank has only issued it and does not wait.
TEST(Concurrency, TransfersNeedNoWaitOfTheOthers) {
  run_ranks(2, [](std::shared_ptr<Communicator> comm) {
    auto gather = issue_gather(*comm, 0, 100000);
    auto scatter = issue_scatter(*comm, 1, 100000);
    if (comm->rank() == 0) {
      scatter.work->wait();
      gather.work->wait();
      EXPECT_TRUE(torch::equal(gather.output, gather.expected));
    }
    comm->barrier(id("end", 0));
    if (comm->rank() == 1) {
      gather.work->wait();
      scatter.work->wait();
      EXPECT_TRUE(torch::equal(scatter.output, scatter.expected));
    }
  });
}

TEST(Concurrency, AWorkIsWaitedForOnce) {
  run_ranks(2, [](std::shared_ptr<Communicator> comm) {
    auto gather = issue_gather(*comm, 0, 3);
    gather.work->wait();
    EXPECT_THROW(gather.work->wait(), c10::Error);
  });
}

// Sums depend on the order of the ranks only: in fp32, 1e8 + 1 - 1e8 is 0 from left to right.
TEST(Order, SumsGoFromRankZeroUp) {
  for (int repeat = 0; repeat < 5; ++repeat) {
    run_ranks(3, [](std::shared_ptr<Communicator> comm) {
      const float values[] = {1e8f, 1.f, -1e8f};
      auto tensor = torch::full({7}, values[comm->rank()]);
      auto part = torch::full({2}, 99.f);
      comm->reduce_scatter(part, torch::full({6}, values[comm->rank()]), {}, id("scatter", 0))->wait();
      comm->all_reduce(tensor, tensor, {}, id("reduce", 0))->wait();
      EXPECT_TRUE(torch::equal(tensor, torch::zeros({7})));
      EXPECT_TRUE(torch::equal(part, torch::zeros({2})));
    });
  }
}

// 256 + 1 + 1 is 258 in fp32, but 256 + 1 rounds to 256 in bf16.
TEST(Order, NarrowDtypesAreSummedInFp32) {
  run_ranks(3, [](std::shared_ptr<Communicator> comm) {
    const float values[] = {256.f, 1.f, 1.f};
    auto input = torch::full({3}, values[comm->rank()], at::kBFloat16);
    auto output = torch::zeros({1});
    comm->reduce_scatter(output, input, {}, id("scatter", 0))->wait();
    EXPECT_EQ(output.item<float>(), 258.f);
    comm->all_reduce(input, input, {}, id("reduce", 0))->wait();
    EXPECT_TRUE(torch::equal(input, torch::full({3}, 258.f, at::kBFloat16)));
  });
}

TEST(Integers, AreSummedExactly) {
  run_ranks(3, [](std::shared_ptr<Communicator> comm) {
    auto counts = torch::tensor({int64_t{1} << 60, int64_t{comm->rank()}});
    comm->all_reduce(counts, counts, {}, id("count", 0))->wait();
    EXPECT_TRUE(torch::equal(counts, torch::tensor({int64_t{3} << 60, int64_t{3}})));
  });
}

class FlagWords : public ::testing::TestWithParam<size_t> {};

TEST_P(FlagWords, AreOredOverTheRanks) {
  run_ranks(3, [](std::shared_ptr<Communicator> comm) {
    std::vector<uint64_t> own(GetParam());
    std::vector<uint64_t> expected(GetParam());
    for (size_t word = 0; word < own.size(); ++word) {
      own[word] = uint64_t{1} << ((word + static_cast<size_t>(comm->rank()) * 20) % 64);
      for (size_t rank = 0; rank < 3; ++rank) expected[word] |= uint64_t{1} << ((word + rank * 20) % 64);
    }
    auto scattered = own;
    auto reduced = own;
    auto tensor = torch::ones({5});
    comm->reduce_scatter(torch::zeros({4}), torch::ones({12}), {}, id("scatter", 0), &scattered)->wait();
    comm->all_reduce(tensor, tensor, {}, id("reduce", 0), &reduced)->wait();
    EXPECT_EQ(scattered, expected);
    EXPECT_EQ(reduced, expected);
  });
}

INSTANTIATE_TEST_SUITE_P(Lengths, FlagWords, ::testing::Values(0, 1, 23, 24, 25, 1000));

TEST(Bytes, OfAnyLength) {
  for (int size : {1, 2, 4}) {
    run_ranks(size, [size](std::shared_ptr<Communicator> comm) {
      std::vector<std::string> all;
      size_t sent = 0;
      for (uint64_t generation = 0; generation < 3; ++generation) {
        all.clear();
        for (int rank = 0; rank < size; ++rank) {
          all.push_back(std::string(static_cast<size_t>(rank) * 1000 * generation, static_cast<char>('a' + rank)));
        }
        const auto& own = all[static_cast<size_t>(comm->rank())];
        EXPECT_EQ(comm->all_gather_bytes(own, id("bytes", generation)), all);
        sent += own.size() * static_cast<size_t>(size - 1);
      }
      EXPECT_EQ(comm->bytes_sent(), sent);
    });
  }
}

}  // namespace
}  // namespace fsdp::comm::concurrency_test
