// Tests ranks that leave, fail, come late or never come: the others get errors that name them, long before the timeout.
#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <thread>

#include "comm/gloo/gloo_communicator.h"
#include "comm/meeting/meeting_point.h"
#include "comm/testing/faulty_communicator.h"
#include "fsdp/backends.h"
#include "fsdp/communicator.h"
#include "support/faults/error_of.h"
#include "support/ranks/thread_ranks.h"

namespace fsdp::comm::lost_ranks_test {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using testing::error_of;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StrEq;
using namespace std::chrono_literals;
using testing::run_ranks;

CollectiveId id(const std::string& name) { return {name, 0, Pass::kBackward}; }

std::unique_ptr<Work> gather(Communicator& comm, const std::string& name, int64_t numel = 8) {
  return comm.all_gather(torch::zeros({numel * comm.size()}), torch::ones({numel}), id(name));
}

// Longer than any test may take: a test that waits for it exceeds the time limit of the test program.
testing::RankOptions never() { return {std::chrono::hours(1)}; }

std::vector<std::string> errors_of_ranks(int size, const testing::RankOptions& options,
                                         const std::function<void(std::shared_ptr<Communicator>)>& body) {
  return testing::errors_of_ranks(size, body, options);
}

// Exits with status 3 if a thread of this name is left.
void check_no_thread_is_called(const std::string& name) {
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream file(task.path() / "comm");
    std::string comm;
    std::getline(file, comm);
    if (comm == name) std::_Exit(3);
  }
}

// [Note: threads alive at exit] in base/stopped_at_exit.h
TEST(Exit, EndsThreadsOfGroupsThatAreStillAlive) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  auto exit_with_live_groups = [] {
    std::atexit([] { check_no_thread_is_called("fsdp_watch"); });  // called after handlers registered later
    static auto* const kept = new std::array<std::shared_ptr<Communicator>, 2>;
    run_ranks(2, [](std::shared_ptr<Communicator> comm) {
      gather(*comm, "a")->wait();
      comm->twin();
      kept->at(comm->rank()) = comm;
    });
    std::exit(0);
  };
  EXPECT_EXIT(exit_with_live_groups(), ::testing::ExitedWithCode(0), "");
}

TEST(LostRank, LeavesBeforeACollective) {
  const auto errors = errors_of_ranks(3, never(), [](std::shared_ptr<Communicator> comm) {
    gather(*comm, "a")->wait();
    if (comm->rank() != 1) gather(*comm, "b")->wait();
  });
  EXPECT_EQ(errors[1], "no error");
  for (const auto& error : {errors[0], errors[2]}) {
    EXPECT_THAT(error, AllOf(HasSubstr("all-gather of 'b' (backward, generation 0)"), HasSubstr("rank 1")));
  }
}

// The rank leaves in the middle of its large transfers, or just after: the others have all the data or an error.
TEST(LostRank, LeavesWithoutWaiting) {
  const auto errors = errors_of_ranks(3, never(), [](std::shared_ptr<Communicator> comm) {
    const int64_t numel = 1 << 23;
    auto output = torch::zeros({3 * numel});
    auto work = comm->all_gather(output, torch::ones({numel}), id("a"));
    if (comm->rank() == 1) return;
    work->wait();
    EXPECT_EQ(output.sum(at::kDouble).item<double>(), 3.0 * numel);
  });
  EXPECT_EQ(errors[1], "no error");
  for (const auto& error : {errors[0], errors[2]}) {
    EXPECT_THAT(error, AnyOf(StrEq("no error"), AllOf(HasSubstr("all-gather of 'a'"), HasSubstr("rank 1 is lost"))));
  }
}

// A rank that has done its part may leave: the data that it sent arrive.
TEST(LostRank, LeavesWhenDone) {
  const auto errors = errors_of_ranks(3, never(), [](std::shared_ptr<Communicator> comm) {
    auto output = torch::zeros({3});
    if (comm->rank() == 2) std::this_thread::sleep_for(200ms);
    comm->all_gather(output, torch::full({1}, comm->rank(), at::kFloat), id("last"))->wait();
    EXPECT_TRUE(torch::equal(output, torch::arange(3).to(at::kFloat)));
  });
  for (const auto& error : errors) EXPECT_EQ(error, "no error");
}

// Rank 0 waits for rank 1, which lives and computes, while rank 2 is lost. Rank 0 must notice that before rank 1 is
// ready.
TEST(LostRank, IsNoticedWhileWaitingForAnother) {
  std::atomic<bool> noticed{false};
  const auto errors = errors_of_ranks(3, never(), [&](std::shared_ptr<Communicator> comm) {
    gather(*comm, "a")->wait();
    if (comm->rank() == 2) return;
    if (comm->rank() == 1) {
      while (!noticed) std::this_thread::sleep_for(10ms);
      return;
    }
    const auto error = error_of([&] { gather(*comm, "b")->wait(); });
    noticed = true;
    EXPECT_THAT(error, AllOf(HasSubstr("rank 2 is lost"), HasSubstr("'b'")));
  });
  EXPECT_EQ(errors[1], "no error");
}

// A failure of one rank reaches the ranks that only keep waiting, with its reason.
TEST(LostRank, TheReasonOfAFailureReachesAll) {
  std::atomic<int> ended{0};
  const auto errors = errors_of_ranks(3, {2s}, [&](std::shared_ptr<Communicator> comm) {
    gather(*comm, "a")->wait();
    if (comm->rank() == 2) {
      while (ended < 2) std::this_thread::sleep_for(10ms);
    }
    const auto error = error_of([&] {
      // Data that the others sent before they failed may still complete the first of these on rank 2.
      for (int i = 0; i < 2; ++i) gather(*comm, "b")->wait();
    });
    ++ended;
    TORCH_CHECK(false, error);
  });
  for (const auto& error : errors) {
    EXPECT_THAT(error, AllOf(HasSubstr("rank 2 is late"), HasSubstr("all-gather of 'b'")));
  }
  EXPECT_THAT(errors[2], AnyOf(HasSubstr("rank 0 is lost: it failed"), HasSubstr("rank 1 is lost: it failed")));
}

TEST(LateRank, IsNamedWithCollectiveAndTime) {
  std::atomic<bool> ended{false};
  errors_of_ranks(2, {1s}, [&](std::shared_ptr<Communicator> comm) {
    if (comm->rank() == 1) {
      while (!ended) std::this_thread::sleep_for(10ms);
      return;
    }
    const auto error = error_of([&] { gather(*comm, "a")->wait(); });
    EXPECT_THAT(error, AllOf(HasSubstr("rank 0 cannot finish its all-gather of 'a'"), HasSubstr("rank 1 is late"),
                             HasSubstr("timeout 1 s")));
    ended = true;
  });
}

// After an error the memory belongs to the caller again: data that arrive late are not written to it.
TEST(LateRank, WritesNothingIntoTheMemoryOfAFailedCollective) {
  std::atomic<bool> failed{false};
  std::atomic<bool> issued{false};
  errors_of_ranks(2, {1s}, [&](std::shared_ptr<Communicator> comm) {
    auto output = torch::zeros({2000});
    if (comm->rank() == 1) {
      while (!failed) std::this_thread::yield();
      error_of([&] { comm->all_gather(output, torch::ones({1000}), id("a"))->wait(); });
      issued = true;
      return;
    }
    EXPECT_THAT(error_of([&] { comm->all_gather(output, torch::ones({1000}), id("a"))->wait(); }), HasSubstr("late"));
    failed = true;
    output.fill_(7);
    while (!issued) std::this_thread::sleep_for(10ms);
    EXPECT_TRUE(torch::equal(output, torch::full({2000}, 7.f)));
  });
}

// A collective whose issue fails on one rank, for example out of memory, ends the step on all ranks.
TEST(FailingRank, EndsTheOthersToo) {
  for (const auto what : {Fault::What::kFailIssue, Fault::What::kFailWait}) {
    const auto errors = errors_of_ranks(2, never(), [what](std::shared_ptr<Communicator> inner) {
      std::vector<Fault> faults;
      if (inner->rank() == 0) faults.push_back({1, what, {}, "no memory"});
      FaultyCommunicator comm(std::move(inner), faults);
      gather(comm, "a", 1 << 20)->wait();
      gather(comm, "b", 1 << 20)->wait();
      gather(comm, "c", 1 << 20)->wait();
    });
    EXPECT_EQ(errors[0], "no memory");
    EXPECT_THAT(errors[1], HasSubstr("rank 0"));
    EXPECT_THAT(errors[1], Not(HasSubstr("no error")));
  }
}

TEST(SlowRank, IsWaitedFor) {
  const auto errors = errors_of_ranks(2, never(), [](std::shared_ptr<Communicator> inner) {
    std::vector<Fault> faults;
    if (inner->rank() == 0) {
      faults = {{0, Fault::What::kDelayIssue, 150ms, ""}, {1, Fault::What::kDelayWait, 150ms, ""}};
    }
    FaultyCommunicator comm(std::move(inner), faults);
    for (const char* unit : {"a", "b"}) gather(comm, unit)->wait();
  });
  for (const auto& error : errors) EXPECT_EQ(error, "no error");
}

// Rank r of the group claims to be rank places[r].first of places[r].second.
std::vector<std::string> errors_of_meeting(const std::vector<std::pair<int, int>>& places) {
  const auto point = make_in_memory_meeting_point();
  std::vector<std::string> errors(places.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < places.size(); ++i) {
    threads.emplace_back([&, i] {
      GlooOptions options;
      options.timeout = 1500ms;
      errors[i] = error_of([&] { make_gloo_communicator(point, places[i].first, places[i].second, options); });
    });
  }
  for (auto& thread : threads) thread.join();
  return errors;
}

TEST(Meeting, RanksThatDoNotComeAreNamed) {
  for (const auto& error : errors_of_meeting({{0, 4}, {2, 4}})) {
    EXPECT_THAT(error, AllOf(HasSubstr("rank(s) 1, 3 of 4"), HasSubstr("1.5 s"), HasSubstr("memory")));
  }
}

TEST(Meeting, DifferentSizesAreNamed) {
  const auto errors = errors_of_meeting({{0, 2}, {1, 3}});
  EXPECT_THAT(errors[0] + errors[1], AllOf(HasSubstr("disagree"), HasSubstr("2 (rank 0)"), HasSubstr("3 (rank 1)")));
}

TEST(Meeting, APointServesSeveralGroups) {
  const auto point = make_in_memory_meeting_point();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      auto first = make_gloo_communicator(point, rank, 2, {});
      auto second = make_gloo_communicator(point, rank, 2, {});
      auto work = gather(*first, "first");
      gather(*second, "second")->wait();
      work->wait();
    });
  }
  for (auto& thread : threads) thread.join();
}

}  // namespace
}  // namespace fsdp::comm::lost_ranks_test
