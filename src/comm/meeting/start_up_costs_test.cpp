// Tests that the number of store operations at start-up grows with the number of ranks, not with its square.
#include <gmock/gmock.h>

#include <thread>

#include "comm/group_partition.h"
#include "comm/meeting/meeting_point.h"
#include "comm/meeting/meeting_point_impl.h"
#include "comm/meeting/store_barrier.h"
#include "support/faults/error_of.h"
#include "support/ranks/counting_store.h"
#include "support/ranks/thread_ranks.h"

namespace fsdp::comm::start_up_costs_test {
namespace {

using ::testing::AllOf;
using testing::CountingStore;
using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;

void arrive(c10d::Store& store, int size, int except = -1) {
  for (int rank = 0; rank < size; ++rank) {
    StoreBarrier barrier(store, size);
    if (rank != except) barrier.arrive(rank);
    EXPECT_EQ(barrier.is_complete(), rank == size - 1 && except < 0) << rank << " of " << size;
  }
}

TEST(StoreBarrier, IsCompleteWhenTheLastRankHasArrived) {
  for (int size : {1, 2, 3, 63, 64, 65, 127, 128, 129, 4095, 4096, 4097, 5000}) {
    CountingStore store;
    arrive(store, size);
    EXPECT_LE(store.requests(), 2 * size + 2 * (size / 64 + 3)) << size;
    EXPECT_EQ(store.looks(), size);
    EXPECT_THAT(StoreBarrier(store, size).missing(), ElementsAre());
  }
}

TEST(StoreBarrier, NamesRanksThatAreMissingAndLooksNearThemOnly) {
  for (int size : {2, 64, 65, 4097}) {
    for (int missing : {0, size / 2, size - 1}) {
      CountingStore store;
      arrive(store, size, missing);
      const int64_t before = store.requests() + store.looks();
      EXPECT_THAT(StoreBarrier(store, size).missing(), ElementsAre(missing)) << size;
      EXPECT_LE(store.requests() + store.looks() - before, size / 64 + 1 + 64) << size;
    }
  }
}

// Runs each rank as a thread, which joins and finds the others.
c10::intrusive_ptr<CountingStore> store_after_joining(int size) {
  auto store = c10::make_intrusive<CountingStore>();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      MeetingPoint point(store, "memory", "127.0.0.1");
      EXPECT_EQ(error_of([&] { point.join(rank, size, std::chrono::minutes(5)); }), "no error");
    });
  }
  for (std::thread& thread : threads) thread.join();
  return store;
}

TEST(StartUpCosts, JoiningCostsARankTheSameAtAnySize) {
  for (int size : {2, 8, 64, 512}) {
    const auto store = store_after_joining(size);
    EXPECT_LE(store->requests(), 7 * size) << size;
    EXPECT_EQ(store->keys_looked_at(), 1) << size;
  }
}

TEST(StartUpCosts, RanksThatDoNotComeAreNamed) {
  MeetingPoint point(c10::make_intrusive<CountingStore>(), "memory", "127.0.0.1");
  EXPECT_THAT(
      error_of([&] { point.join(1, 3, std::chrono::milliseconds(30)); }),
      AllOf(HasSubstr("rank 1 waited up to 0.03 s at memory for rank(s) 0, 2 of 3 ranks"), HasSubstr("not arrive")));
}

// ---------------------------------------------------------------- subgroups

struct Counted {
  int64_t bytes = 0;  // sent by rank 0 to the last rank
  std::string error;  // the same on all ranks
};

// Returns the result of an agreement on subgroups. `members`: returns the list of a rank.
Counted partition(int size, const std::function<std::vector<int>(int rank)>& members) {
  Counted counted;
  std::vector<std::string> errors(static_cast<size_t>(size)), words(static_cast<size_t>(size));
  testing::run_ranks(size,
                     [&](std::shared_ptr<Communicator> comm) {
                       const int rank = comm->rank();
                       const uint64_t before = comm->bytes_sent_to().back();
                       errors[static_cast<size_t>(rank)] = error_of([&] {
                         words[static_cast<size_t>(rank)] =
                             agree_on_partition(*comm, members(rank), {"parts", 0, Pass::kSetup});
                       });
                       if (rank == 0) counted.bytes = static_cast<int64_t>(comm->bytes_sent_to().back() - before);
                     },
                     {.communicator = "gloo"});
  for (int rank = 0; rank < size; ++rank) {
    EXPECT_EQ(errors[static_cast<size_t>(rank)], errors[0]) << rank;
    EXPECT_EQ(words[static_cast<size_t>(rank)], words[0]) << rank;
  }
  counted.error = errors[0];
  return counted;
}

TEST(StartUpCosts, RanksTellHashesOfTheListsOfTheirSubgroups) {
  const auto all = [](int size) {
    std::vector<int> members(static_cast<size_t>(size));
    for (int rank = 0; rank < size; ++rank) members[static_cast<size_t>(rank)] = rank;
    return members;
  };
  for (int size : {2, 3, 40}) {
    const Counted one = partition(size, [&](int) { return all(size); });
    EXPECT_EQ(one.error, "no error");
    EXPECT_GT(one.bytes, 32) << size;  // a hash has 128 bits
    EXPECT_LE(one.bytes, 72) << size;  // the list of 40 ranks alone has 109
    EXPECT_EQ(partition(size, [](int rank) { return std::vector{rank}; }).error, "no error");
  }
}

TEST(StartUpCosts, BadListsAreAnErrorOnAllRanks) {
  const auto error_with = [](std::vector<std::vector<int>> lists) {
    return partition(static_cast<int>(lists.size()), [&](int rank) { return lists[static_cast<size_t>(rank)]; }).error;
  };
  EXPECT_THAT(error_with({{0, 1}, {0, 1, 2}, {0, 1, 2}}),
              AllOf(HasSubstr("rank 0 names the ranks [0,1]"), HasSubstr("rank 1 names [0,1,2]")));
  EXPECT_THAT(error_with({{0, 1}, {0, 1}, {0, 1}}), HasSubstr("rank 2 of 3 cannot be in a group of the ranks [0, 1]"));
  EXPECT_THAT(error_with({{1, 0}, {1, 0}}), HasSubstr("must be ranks of this group in ascending order"));
  EXPECT_THAT(error_with({{0, 1, 2}, {0, 1, 2}}), HasSubstr("rank 0 of 2 cannot be in a group"));
  EXPECT_THAT(error_with({{}, {1}}), HasSubstr("rank 0 of 2 cannot be in a group of the ranks []"));
}

}  // namespace
}  // namespace fsdp::comm::start_up_costs_test
