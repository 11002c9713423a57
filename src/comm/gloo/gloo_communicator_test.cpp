// Tests results and byte counts of the communicators for host memory against plain concatenation and summation.
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <latch>
#include <numeric>
#include <thread>

#include "base/sanitizers.h"
#include "comm/collective_shapes.h"
#include "comm/testing/collectives.h"
#include "fsdp/communicator.h"
#include "support/memory/counting_allocator.h"
#include "support/ranks/thread_ranks.h"

namespace fsdp::comm::gloo_communicator_test {
namespace {

using ::testing::Combine;
using testing::contribution;
using testing::id;
using testing::run_ranks;
using testing::sum_of_contributions;
using ::testing::Values;

using RankBody = std::function<void(Communicator&)>;

void with_ranks(int size, const RankBody& body) {
  run_ranks(size, [&](std::shared_ptr<Communicator> comm) { body(*comm); });
}

void with_ranks(const std::string& backend, int size, const RankBody& body) {
  run_ranks(size, [&](std::shared_ptr<Communicator> comm) { body(*comm); }, {.communicator = backend});
}

class HostSizes : public ::testing::TestWithParam<std::tuple<std::string, int, int64_t, at::ScalarType>> {
 protected:
  std::string backend() const { return std::get<0>(GetParam()); }
  int size() const { return std::get<1>(GetParam()); }
  int64_t numel() const { return std::get<2>(GetParam()); }
  at::ScalarType dtype() const { return std::get<3>(GetParam()); }
};

TEST_P(HostSizes, AllGatherConcatenates) {
  with_ranks(backend(), size(), [&](Communicator& comm) {
    std::vector<at::Tensor> all;
    for (int rank = 0; rank < size(); ++rank) all.push_back(contribution(rank, numel(), dtype()));
    auto output = torch::full({size() * numel()}, 99, dtype());
    comm.all_gather(output, all[static_cast<size_t>(comm.rank())].clone(), id("u"))->wait();
    EXPECT_TRUE(torch::equal(output, torch::cat(all)));
    EXPECT_EQ(comm.bytes_sent(), (size() - 1) * numel() * output.element_size());
  });
}

TEST_P(HostSizes, AllGatherInPlace) {
  with_ranks(backend(), size(), [&](Communicator& comm) {
    std::vector<at::Tensor> all;
    for (int rank = 0; rank < size(); ++rank) all.push_back(contribution(rank, numel(), dtype()));
    auto output = torch::full({size() * numel()}, 99, dtype());
    auto own = output.narrow(0, comm.rank() * numel(), numel());
    own.copy_(all[static_cast<size_t>(comm.rank())]);
    comm.all_gather(output, own, id("u"))->wait();
    EXPECT_TRUE(torch::equal(output, torch::cat(all)));
  });
}

TEST_P(HostSizes, BroadcastCopiesFromAnyRank) {
  with_ranks(backend(), size(), [&](Communicator& comm) {
    for (int root = 0; root < size(); ++root) {
      auto tensor = contribution(comm.rank(), numel(), dtype());
      comm.broadcast(tensor, root, id("u", static_cast<uint64_t>(root)))->wait();
      EXPECT_TRUE(torch::equal(tensor, contribution(root, numel(), dtype())));
    }
    EXPECT_EQ(comm.bytes_sent(), (size() - 1) * numel() * c10::elementSize(dtype()));
    EXPECT_ANY_THROW(comm.broadcast(torch::zeros({1}), size(), id("u")));
  });
}

TEST_P(HostSizes, ReduceScatterSumsTheOwnPart) {
  with_ranks(backend(), size(), [&](Communicator& comm) {
    auto input = contribution(comm.rank(), numel() * size(), dtype());
    auto output = torch::full({numel()}, 99, dtype());
    comm.reduce_scatter(output, input, {0.5}, id("u"))->wait();
    auto expected = sum_of_contributions(size(), numel() * size(), 0.5).narrow(0, comm.rank() * numel(), numel());
    EXPECT_TRUE(torch::equal(output, expected.to(dtype())));
    EXPECT_EQ(comm.bytes_sent(), (size() - 1) * numel() * output.element_size());
  });
}

TEST_P(HostSizes, AllReduceSumsInPlaceAndOutOfPlace) {
  with_ranks(backend(), size(), [&](Communicator& comm) {
    auto tensor = contribution(comm.rank(), numel(), dtype());
    auto output = torch::full({numel()}, 99, torch::kFloat);
    comm.all_reduce(output, tensor.clone(), {0.25}, id("out"))->wait();
    comm.all_reduce(tensor, tensor, {0.25}, id("in"))->wait();
    auto expected = sum_of_contributions(size(), numel(), 0.25);
    EXPECT_TRUE(torch::equal(output, expected.to(dtype()).to(torch::kFloat)));  // sums travel in the input's dtype
    EXPECT_TRUE(torch::equal(tensor, expected.to(dtype())));
  });
}

TEST_P(HostSizes, AllReduceSendsOnlyMissingParts) {
  with_ranks(backend(), size(), [&](Communicator& comm) {
    auto tensor = contribution(comm.rank(), numel(), dtype());
    comm.all_reduce(tensor, tensor, {}, id("u"))->wait();
    const auto own = part_of(numel(), comm.rank(), size()).numel;
    EXPECT_EQ(comm.bytes_sent(), ((numel() - own) + (size() - 1) * own) * tensor.element_size());
  });
}

// Contributions of other ranks wait in memory that is reused until trim() releases it.
TEST(GlooMemory, StagingMemoryIsGivenBackOnRequest) {
  constexpr int64_t kBytes = int64_t{1} << 20;
  const testing::CountedMemory memory;
  with_ranks("gloo", 2, [&](Communicator& comm) {
    auto reduce = [&](uint64_t generation) {
      auto output = torch::zeros({kBytes / 4});
      comm.reduce_scatter(output, torch::ones({2 * kBytes / 4}), {}, id("u", generation))->wait();
      EXPECT_TRUE(torch::equal(output, torch::full({kBytes / 4}, 2.0)));
    };
    reduce(0);
    comm.barrier(id("kept"));
    if (comm.rank() == 0) {
      EXPECT_GE(memory.current_bytes(), 2 * kBytes);
    }
    comm.barrier(id("looked"));
    comm.trim();
    comm.barrier(id("given back"));
    EXPECT_LT(memory.current_bytes(), kBytes / 4);
    comm.barrier(id("looked", 1));
    reduce(1);
  });
}

// The bytes that this thread has written through the system, or nothing if the system does not count them.
std::optional<uint64_t> bytes_written_by_this_thread() {
  std::ifstream counters("/proc/thread-self/io");
  for (std::string name; counters >> name;) {
    uint64_t value = 0;
    counters >> value;
    if (name == "wchar:") return value;
  }
  return std::nullopt;
}

// [Note: messages are posted on Gloo's thread]: they are, even if the other side already waits for them.
TEST(GlooThreads, IssuingACollectiveWritesNothing) {
  if (!bytes_written_by_this_thread()) GTEST_SKIP() << "the system does not count a thread's bytes";
  std::latch posted(1);
  with_ranks(2, [&](Communicator& comm) {
    const at::Tensor input = torch::ones({int64_t{1} << 20}), output = torch::zeros({int64_t{1} << 19});
    if (comm.rank() == 0) {
      posted.wait();
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    const uint64_t before = *bytes_written_by_this_thread();
    const auto work = comm.reduce_scatter(output, input, {}, id("u"));
    if (comm.rank() == 1) posted.count_down();
    work->wait();
    EXPECT_LT(*bytes_written_by_this_thread() - before, 1000U);
    EXPECT_TRUE(torch::equal(output, torch::full_like(output, 2.0)));
  });
}

INSTANTIATE_TEST_SUITE_P(All, HostSizes,
                         Combine(Values("gloo", "shm"), Values(1, 2, 3, 4), Values<int64_t>(0, 1, 2, 7, 1025, 70001),
                                 Values(at::kFloat, at::kDouble, at::kBFloat16, at::kHalf)));

// The threads of a group run only in the process that made it: a child must not wait for them. A thread in the child
// makes the C library free the stacks of the lost threads, since it keeps only some.
TEST(GlooGroup, AChildOfItsProcessCanEnd) {
  if (FSDP_ADDRESS_SANITIZER || FSDP_THREAD_SANITIZER) GTEST_SKIP() << "sanitizers look for the threads of the parent";
  std::vector<std::shared_ptr<Communicator>> kept(8);
  run_ranks(8,
            [&](std::shared_ptr<Communicator> comm) {
              comm->barrier(id("u"));
              kept[static_cast<size_t>(comm->rank())] = comm;
            },
            {.communicator = "gloo"});
  std::fflush(nullptr);
  for (const bool destroys : {false, true}) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(20);
      std::thread([] {}).join();
      if (destroys) kept.clear();
      std::exit(7);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 7) << "status " << status << ", destroys " << destroys;
  }
}

}  // namespace
}  // namespace fsdp::comm::gloo_communicator_test
