// Tests ranks of several hosts: results equal those over Gloo alone, except for the traffic between hosts.
#include "comm/hosts/hosts_communicator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <random>

#include "comm/cpu_communicator.h"
#include "comm/meeting/meeting_point.h"
#include "comm/testing/collectives.h"
#include "comm/testing/host_ranks.h"
#include "fsdp/backends.h"
#include "fsdp/memory_sharing.h"
#include "support/ranks/thread_ranks.h"

namespace fsdp::comm::hosts_communicator_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::id;
using testing::on_hosts;

struct Sizes {
  int hosts;
  int ranks_per_host;
};

class OverHosts : public ::testing::TestWithParam<Sizes> {
 protected:
  static void run(const testing::HostsBody& body) { on_hosts(GetParam().hosts, GetParam().ranks_per_host, body); }
};

INSTANTIATE_TEST_SUITE_P(All, OverHosts, ::testing::Values(Sizes{2, 2}, Sizes{2, 3}, Sizes{3, 2}, Sizes{5, 2}),
                         [](const auto& info) {
                           return std::to_string(info.param.hosts) + "x" + std::to_string(info.param.ranks_per_host);
                         });

// Small integers, so that sums are exact in any order.
at::Tensor integers(int rank, int64_t numel, at::ScalarType dtype = at::kFloat) {
  return ((torch::arange(numel) * 7 + rank * 5) % 13 - 6).to(dtype);
}

at::Tensor random(int rank, int64_t numel, at::ScalarType dtype) {
  auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(rank) + 17);
  return torch::randn({numel}, generator, at::TensorOptions(at::kFloat)).to(dtype);
}

// ---------------------------------------------------------------- collectives

TEST_P(OverHosts, GathersInRankOrder) {
  run([](Communicator& comm, Communicator& flat) {
    for (int64_t n : {0, 1, 7, 5000}) {
      for (at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kLong}) {
        const at::Tensor input = integers(comm.rank(), n, dtype);
        at::Tensor output = torch::empty({n * comm.size()}, dtype), expected = torch::empty_like(output);
        comm.all_gather(output, input, id("u"))->wait();
        flat.all_gather(expected, input, id("u"))->wait();
        EXPECT_TRUE(torch::equal(output, expected)) << n << " of " << dtype;
        output.zero_();
        at::Tensor own = output.narrow(0, comm.rank() * n, n).copy_(input);
        comm.all_gather(output, own, id("in place"))->wait();
        EXPECT_TRUE(torch::equal(output, expected)) << n << " of " << dtype << ", in place";
      }
    }
  });
}

struct Dtypes {
  at::ScalarType input, output;
};
constexpr Dtypes kReductions[] = {
    {at::kFloat, at::kFloat}, {at::kDouble, at::kDouble},  {at::kBFloat16, at::kFloat}, {at::kBFloat16, at::kBFloat16},
    {at::kHalf, at::kHalf},   {at::kFloat, at::kBFloat16}, {at::kLong, at::kLong}};

TEST_P(OverHosts, SumsExactlyAsGlooWhereSumsAreExact) {
  run([](Communicator& comm, Communicator& flat) {
    for (int64_t n : {0, 1, 3, 1111}) {
      for (const auto [from, to] : kReductions) {
        const double scale = from == at::kLong ? 1.0 : 0.125;
        const at::Tensor input = integers(comm.rank(), n * comm.size(), from);
        at::Tensor part = torch::empty({n}, to), expected = torch::empty({n}, to);
        comm.reduce_scatter(part, input, {scale}, id("scatter"))->wait();
        flat.reduce_scatter(expected, input, {scale}, id("scatter"))->wait();
        EXPECT_TRUE(torch::equal(part, expected)) << n << " of " << from << " into " << to;
        at::Tensor sum = torch::empty({n}, to), expected_sum = torch::empty({n}, to);
        comm.all_reduce(sum, integers(comm.rank(), n, from), {scale}, id("reduce"))->wait();
        flat.all_reduce(expected_sum, integers(comm.rank(), n, from), {scale}, id("reduce"))->wait();
        EXPECT_TRUE(torch::equal(sum, expected_sum)) << n << " of " << from << " into " << to;
      }
    }
  });
}

TEST_P(OverHosts, SumsRoundAsGlooDoes) {
  run([](Communicator& comm, Communicator& flat) {
    const int64_t n = 513;
    for (const auto& [from, tolerance] :
         {std::pair(at::kFloat, 1e-6), std::pair(at::kDouble, 1e-14), std::pair(at::kBFloat16, 1e-6)}) {
      const at::ScalarType to = from == at::kBFloat16 ? at::kFloat : from;
      const at::Tensor input = random(comm.rank(), n * comm.size(), from);
      at::Tensor part = torch::empty({n}, to), expected = torch::empty({n}, to);
      comm.reduce_scatter(part, input, {0.25}, id("scatter"))->wait();
      flat.reduce_scatter(expected, input, {0.25}, id("scatter"))->wait();
      EXPECT_TRUE(torch::allclose(part, expected, tolerance, tolerance)) << from;
    }
  });
}

// The order of summation is fixed, so all ranks get the same bits each time.
TEST_P(OverHosts, AllReducesToTheSameBitsOnAllRanks) {
  run([](Communicator& comm, Communicator& flat) {
    for (int repeat = 0; repeat < 3; ++repeat) {
      at::Tensor sum = random(comm.rank(), 1001, at::kFloat);
      comm.all_reduce(sum, sum, {1.0 / 3}, id("reduce", static_cast<uint64_t>(repeat)))->wait();
      at::Tensor all = torch::empty({comm.size() * 1001});
      flat.all_gather(all, sum, id("compare"))->wait();
      for (const at::Tensor& other : all.chunk(comm.size())) EXPECT_TRUE(torch::equal(sum, other));
    }
  });
}

TEST_P(OverHosts, BroadcastsFromEachRank) {
  run([](Communicator& comm, Communicator&) {
    for (int root = 0; root < comm.size(); ++root) {
      for (int64_t n : {0, 1, 4097}) {
        at::Tensor tensor = integers(comm.rank(), n);
        comm.broadcast(tensor, root, id("u"))->wait();
        EXPECT_TRUE(torch::equal(tensor, integers(root, n)));
      }
    }
  });
}

TEST_P(OverHosts, ExchangesParts) {
  run([](Communicator& comm, Communicator& flat) {
    SplitCounts counts;
    int64_t sent = 0, received = 0;
    for (int peer = 0; peer < comm.size(); ++peer) {
      counts.send.push_back((comm.rank() * 3 + peer) % 4);
      counts.receive.push_back((peer * 3 + comm.rank()) % 4);
      sent += counts.send.back();
      received += counts.receive.back();
    }
    at::Tensor output = torch::zeros({received}), expected = torch::zeros({received});
    comm.all_to_all(output, integers(comm.rank(), sent), counts, id("u"))->wait();
    flat.all_to_all(expected, integers(comm.rank(), sent), counts, id("u"))->wait();
    EXPECT_TRUE(torch::equal(output, expected));
  });
}

TEST_P(OverHosts, GathersBytes) {
  run([](Communicator& comm, Communicator&) {
    std::vector<std::string> all;
    for (int rank = 0; rank < comm.size(); ++rank) all.emplace_back(static_cast<size_t>(rank * 100), 'a' + rank);
    EXPECT_EQ(comm.all_gather_bytes(all[static_cast<size_t>(comm.rank())], id("u")), all);
    comm.barrier(id("u"));
  });
}

TEST_P(OverHosts, FlagsAreOredOverAllRanks) {
  for (size_t words : {1, 25, 300}) {
    run([&](Communicator& comm, Communicator&) {
      std::vector<uint64_t> own(words), expected(words);
      for (size_t word = 0; word < words; ++word) {
        own[word] = uint64_t{1} << ((word + static_cast<size_t>(comm.rank())) % 64);
        for (int rank = 0; rank < comm.size(); ++rank) {
          expected[word] |= uint64_t{1} << ((word + static_cast<size_t>(rank)) % 64);
        }
      }
      std::vector<uint64_t> scattered = own, reduced = own;
      at::Tensor tensor = torch::ones({5});
      auto scatter = comm.reduce_scatter(torch::zeros({4}), torch::ones({4 * comm.size()}), {}, id("s"), &scattered);
      auto reduce = comm.all_reduce(tensor, tensor, {}, id("r"), &reduced);
      reduce->wait();
      scatter->wait();
      EXPECT_EQ(scattered, expected);
      EXPECT_EQ(reduced, expected);
    });
  }
}

// ---------------------------------------------------------------- several in flight

struct InFlight {
  std::unique_ptr<Work> work;
  at::Tensor output, expected;
};

InFlight issue(Communicator& comm, unsigned kind, uint64_t generation, int64_t n) {
  const int size = comm.size();
  const auto salt = static_cast<int>(generation);
  at::Tensor sum = torch::zeros({n * size});
  std::vector<at::Tensor> all;
  for (int rank = 0; rank < size; ++rank) {
    sum += integers(rank + salt, n * size);
    all.push_back(integers(rank + salt, n));
  }
  const at::Tensor input = integers(comm.rank() + salt, kind == 1 || kind == 2 ? n * size : n);
  InFlight flight;
  if (kind == 0) {
    flight = {nullptr, torch::zeros({n * size}), torch::cat(all)};
    flight.work = comm.all_gather(flight.output, input, id("gather", generation));
  } else if (kind == 1) {
    flight = {nullptr, torch::zeros({n}), sum.narrow(0, comm.rank() * n, n)};
    flight.work = comm.reduce_scatter(flight.output, input, {}, id("scatter", generation));
  } else if (kind == 2) {
    flight = {nullptr, input, sum};
    flight.work = comm.all_reduce(flight.output, flight.output, {}, id("reduce", generation));
  } else {
    const int root = static_cast<int>(generation) % size;
    flight = {nullptr, input, all[static_cast<size_t>(root)]};
    flight.work = comm.broadcast(flight.output, root, id("broadcast", generation));
  }
  return flight;
}

// All ranks issue the same collectives, but each waits in its own order, and for some before it issues others.
TEST_P(OverHosts, WaitsInAnyOrder) {
  run([](Communicator& comm, Communicator&) {
    std::mt19937 shared(17), own(static_cast<unsigned>(comm.rank()) + 100);
    std::vector<InFlight> flights;
    for (uint64_t generation = 0; generation < 60; ++generation) {
      const unsigned kind = static_cast<unsigned>(shared() % 4);
      flights.push_back(issue(comm, kind, generation, static_cast<int64_t>(shared() % 3000)));
      std::shuffle(flights.begin(), flights.end(), own);
      const size_t most = 1 + own() % 6;
      while (flights.size() > most || (generation == 59 && !flights.empty())) {
        flights.back().work->wait();
        EXPECT_TRUE(torch::equal(flights.back().output, flights.back().expected));
        flights.pop_back();
      }
    }
  });
}

// Rank 1 reduces after its gather is complete; the others wait for the reduction before they wait for the gather.
TEST_P(OverHosts, AWaitInTheTwinAdvancesThisGroup) {
  run([](Communicator& comm, Communicator&) {
    const auto twin = comm.twin();
    at::Tensor gathered = torch::zeros({comm.size()}), sum = torch::zeros({1});
    const auto gather = comm.all_gather(gathered, torch::ones({1}), id("gather"));
    if (comm.rank() == 1) gather->wait();
    const auto reduce = twin->reduce_scatter(sum, torch::ones({comm.size()}), {}, id("reduce"));
    reduce->wait();
    if (comm.rank() != 1) gather->wait();
    EXPECT_TRUE(torch::equal(gathered, torch::ones({comm.size()})));
    EXPECT_EQ(sum.item<float>(), comm.size());
  });
}

// A collective whose Work one rank drops still ends on the others, and that rank's memory is not written.
TEST_P(OverHosts, AWorkMayBeDropped) {
  run([](Communicator& comm, Communicator&) {
    std::vector<uint64_t> flags{1};
    at::Tensor output = torch::full({4 * comm.size()}, -1.0);
    auto gather = comm.all_gather(output, integers(comm.rank(), 4), id("gather"));
    auto scatter = comm.reduce_scatter(torch::zeros({2}), torch::ones({2 * comm.size()}), {}, id("scatter"), &flags);
    if (comm.rank() == 1) {
      gather.reset();
      scatter.reset();
      comm.barrier(id("b"));
      EXPECT_TRUE(torch::equal(output, torch::full({4 * comm.size()}, -1.0)));
    } else {
      scatter->wait();
      gather->wait();
      EXPECT_TRUE(torch::equal(output.narrow(0, 4, 4), integers(1, 4)));
      comm.barrier(id("b"));
    }
  });
}

// ---------------------------------------------------------------- shared buffers

struct Shared {
  Shared(Communicator& comm, int64_t n)
      : whole(comm.memory_sharing().buffer(comm.size() * n * 4, {.transient = true}, id("buffer")).view(at::kFloat)),
        own(whole.narrow(0, comm.rank() * n, n)) {}
  at::Tensor whole, own;
};

TEST_P(OverHosts, GathersInPlaceOverAndOver) {
  run([](Communicator& comm, Communicator&) {
    EXPECT_FALSE(comm.memory_sharing().buffer(comm.size() * 4, {}, id("buffer")).defined());
    const int64_t n = 1500;
    Shared first(comm, n), second(comm, n);
    for (uint64_t step = 0; step < 40; ++step) {
      Shared& shared = step % 3 == 0 ? second : first;
      std::vector<at::Tensor> all;
      for (int rank = 0; rank < comm.size(); ++rank) all.push_back(integers(rank + static_cast<int>(step), n));
      const at::Tensor value = all[static_cast<size_t>(comm.rank())];
      comm.memory_sharing().await_readers(shared.whole, id("u", step));
      if (step % 2 == 0) shared.own.copy_(value);
      const auto reading = comm.all_gather(shared.whole, step % 2 == 0 ? shared.own : value, id("u", step));
      reading->wait();
      ASSERT_TRUE(torch::equal(shared.whole, torch::cat(all))) << step;
    }
  });
}

TEST_P(OverHosts, SharingKeepsWrittenValues) {
  run([](Communicator& comm, Communicator&) {
    Shared shared(comm, 3000);
    shared.own.copy_(integers(comm.rank(), 3000));
    const void* address = shared.whole.const_data_ptr();
    comm.memory_sharing().share(1 << 20, id("share"));
    EXPECT_TRUE(torch::equal(shared.own, integers(comm.rank(), 3000)));
    const auto reading = comm.all_gather(shared.whole, shared.own, id("u"));
    reading->wait();
    EXPECT_EQ(shared.whole.const_data_ptr(), address);
    for (int rank = 0; rank < comm.size(); ++rank) {
      EXPECT_TRUE(torch::equal(shared.whole.narrow(0, rank * 3000, 3000), integers(rank, 3000)));
    }
  });
}

// Rank 1 has not begun to read when the others are about to write the next values.
TEST_P(OverHosts, WritersWaitForReaders) {
  run([](Communicator& comm, Communicator&) {
    Shared shared(comm, 100);
    auto reading = comm.all_gather(shared.whole, integers(comm.rank(), 100), id("u"));
    if (comm.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(60));
    reading->wait();
    if (comm.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(60));
    for (int rank = 0; rank < comm.size(); ++rank) {
      EXPECT_TRUE(torch::equal(shared.whole.narrow(0, rank * 100, 100), integers(rank, 100)));
    }
    reading.reset();
    comm.memory_sharing().await_readers(shared.whole, id("u"));
    const auto next = comm.all_gather(shared.whole, integers(comm.rank() + 7, 100), id("u", 1));
    next->wait();
    EXPECT_TRUE(torch::equal(shared.whole.narrow(0, 100, 100), integers(8, 100)));
  });
}

}  // namespace
}  // namespace fsdp::comm::hosts_communicator_test
