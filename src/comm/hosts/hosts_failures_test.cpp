// Tests which communicator ranks of several hosts get, and which errors they get when one of them fails.
#include <chrono>
#include <thread>

#include "comm/cpu_communicator.h"
#include "comm/gloo/gloo_communicator.h"
#include "comm/meeting/meeting_point.h"
#include "fsdp/backends.h"
#include "fsdp/memory_sharing.h"
#include "support/faults/error_of.h"
#include "support/ranks/thread_ranks.h"

namespace fsdp::comm::hosts_failures_test {
namespace {

using ::testing::AllOf;
using testing::error_of;
using ::testing::HasSubstr;

CollectiveId id(const std::string& name) { return {name, 3, Pass::kForward}; }

// ---------------------------------------------------------------- choice

// Returns the communicator that each rank gets; all get the same. `probe`: returns the probe of a rank.
ChosenCommunicator choose(int size, const std::function<HostProbe(int rank)>& probe) {
  std::vector<ChosenCommunicator> all(static_cast<size_t>(size));
  const auto point = make_in_memory_meeting_point();
  testing::run_ranks(size,
                     [&](std::shared_ptr<Communicator> outer) {
                       const int rank = outer->rank();
                       const auto gloo = make_host_communicator(point, rank, size, {});
                       all[static_cast<size_t>(rank)] = share_memory(gloo, probe(rank));
                       const auto& comm = all[static_cast<size_t>(rank)].communicator;
                       at::Tensor sum = torch::ones({1});
                       comm->all_reduce(sum, sum, {}, id("works"))->wait();
                       EXPECT_EQ(sum.item<float>(), size);
                       outer->barrier(id("end"));
                     },
                     {.communicator = "gloo"});
  for (const ChosenCommunicator& one : all) {
    EXPECT_EQ(one.reason, all[0].reason);
    EXPECT_EQ(one.communicator->backend(), all[0].communicator->backend());
  }
  return all[0];
}

// `hosts`: one letter for each rank, the name of its host.
ChosenCommunicator choose(const std::string& hosts) {
  return choose(static_cast<int>(hosts.size()), [&](int rank) { return HostProbe{.name = {hosts[rank]}}; });
}

TEST(HostsChoice, IsMemoryAndGlooWhereHostsAreAlike) {
  const ChosenCommunicator chosen = choose("aabb");
  EXPECT_EQ(chosen.communicator->backend(), "shm+gloo");
  EXPECT_EQ(chosen.reason, "2 hosts of 2 ranks each: memory within a host, Gloo among hosts");
  EXPECT_EQ(choose("bbbaaa").reason, "2 hosts of 3 ranks each: memory within a host, Gloo among hosts");
}

TEST(HostsChoice, IsMemoryOnOneHost) {
  const ChosenCommunicator chosen = choose("aaa");
  EXPECT_EQ(chosen.communicator->backend(), "shm");
  EXPECT_EQ(chosen.reason, "all 3 ranks share the memory of this host");
}

TEST(HostsChoice, IsGlooWhereRanksLieOtherwise) {
  for (const char* hosts : {"ab", "aab", "abb", "abab", "aabbb", "aabbaa", "aaabb"}) {
    const ChosenCommunicator chosen = choose(hosts);
    EXPECT_EQ(chosen.communicator->backend(), "gloo") << hosts;
    EXPECT_THAT(chosen.reason,
                AllOf(HasSubstr("rank 0 on host 'a' cannot reach the memory of rank"), HasSubstr("on host 'b'")));
  }
}

// Ranks 0 and 1 share a host with rank 2, but not with each other; or only one of two ranks can open the other's
// memory.
TEST(HostsChoice, IsGlooWhereRanksDisagree) {
  for (const std::vector<std::pair<int, int>>& closed :
       {std::vector<std::pair<int, int>>{{0, 1}, {1, 0}}, std::vector<std::pair<int, int>>{{3, 2}}}) {
    const ChosenCommunicator chosen = choose(4, [&](int rank) {
      auto opened = std::make_shared<int>(0);
      return HostProbe{.name = "a", .open = [=](const std::string& ticket) {
                         const std::pair<int, int> pair{rank, (*opened)++};
                         const bool reached = std::find(closed.begin(), closed.end(), pair) == closed.end();
                         return reached ? SharedMemory::open(ticket) : nullptr;
                       }};
    });
    EXPECT_EQ(chosen.communicator->backend(), "gloo");
    EXPECT_THAT(chosen.reason,
                AllOf(HasSubstr("rank " + std::to_string(closed[0].first) + " on host 'a'"),
                      HasSubstr("memory of rank " + std::to_string(closed[0].second)), HasSubstr("same name")));
  }
}

// Like a limit on address space: no memory is shared then, and all ranks give this reason.
TEST(HostsChoice, IsGlooWhereARankHasNoAddresses) {
  for (int victim : {0, 1}) {
    const ChosenCommunicator chosen = choose(
        3, [&](int rank) { return HostProbe{.name = {}, .heap_nbytes = rank == victim ? int64_t{1} << 55 : 0}; });
    EXPECT_EQ(chosen.communicator->backend(), "gloo");
    EXPECT_THAT(chosen.reason, AllOf(HasSubstr("rank " + std::to_string(victim) + " cannot share memory ("),
                                     HasSubstr("36028797018963968 bytes")));
  }
}

// ---------------------------------------------------------------- different collectives

using Action = std::function<void(Communicator&)>;

// Returns the errors of ranks 0 and 1 on one host and 2 and 3 on another. Takes far less time than the timeout.
std::vector<std::string> errors_of(const std::vector<Action>& actions) {
  std::vector<std::string> errors(actions.size());
  const auto began = std::chrono::steady_clock::now();
  testing::run_ranks(4,
                     [&](std::shared_ptr<Communicator> comm) {
                       EXPECT_EQ(comm->backend(), "shm+gloo");
                       const auto rank = static_cast<size_t>(comm->rank());
                       errors[rank] = error_of([&] { actions[rank](*comm); });
                       // A rank leaves only after all have their error.
                       while (error_of([&] { comm->barrier(id("end")); }) == "no error") {
                       }
                     },
                     {.timeout = std::chrono::seconds(60), .communicator = "hosts"});
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(20));
  return errors;
}

struct Kind {
  const char* text;  // its name in errors
  Action action;
};

const std::vector<Kind>& kinds() {
  static const std::vector<Kind> all{
      {"all-gather of 'a'",
       [](Communicator& comm) { comm.all_gather(torch::zeros({8}), torch::ones({2}), id("a"))->wait(); }},
      {"16 elements of Float",
       [](Communicator& comm) { comm.all_gather(torch::zeros({16}), torch::ones({4}), id("a"))->wait(); }},
      {"all-gather of 'b'",
       [](Communicator& comm) { comm.all_gather(torch::zeros({8}), torch::ones({2}), id("b"))->wait(); }},
      {"reduce-scatter of 'a'",
       [](Communicator& comm) { comm.reduce_scatter(torch::zeros({2}), torch::ones({8}), {}, id("a"))->wait(); }},
      {"scale 0.5",
       [](Communicator& comm) { comm.reduce_scatter(torch::zeros({2}), torch::ones({8}), {0.5}, id("a"))->wait(); }},
      {"all-reduce of 'a'",
       [](Communicator& comm) { comm.all_reduce(torch::zeros({8}), torch::ones({8}), {}, id("a"))->wait(); }},
      {"from rank 0", [](Communicator& comm) { comm.broadcast(torch::ones({8}), 0, id("a"))->wait(); }},
      {"from rank 3", [](Communicator& comm) { comm.broadcast(torch::ones({8}), 3, id("a"))->wait(); }},
      {"all-to-all of 'a'",
       [](Communicator& comm) {
         comm.all_to_all(torch::zeros({8}), torch::ones({8}), {{2, 2, 2, 2}, {2, 2, 2, 2}}, id("a"))->wait();
       }},
      {"all-gather of bytes of 'a'", [](Communicator& comm) { comm.all_gather_bytes("x", id("a")); }},
      {"all-gather of bytes of 'group'", [](Communicator& comm) { comm.subgroup({0, 1, 2, 3}, id("group")); }},
      {"all-gather of bytes of 'share'", [](Communicator& comm) { comm.memory_sharing().share(0, id("share")); }},
  };
  return all;
}

// One rank, one host or one place differs from the others.
TEST(HostsIdentity, RanksThatDifferAreNamedWithBothCollectives) {
  for (size_t one = 0; one < kinds().size(); ++one) {
    for (size_t other = one + 1; other < kinds().size(); ++other) {
      const std::vector<std::vector<size_t>> who{{0}, {1}, {2}, {3}, {0, 1}, {1, 3}, {0, 3}};
      const std::vector<size_t>& wrong = who[(5 * one + other) % who.size()];
      std::vector<Action> actions(4, kinds()[one].action);
      for (size_t rank : wrong) actions[rank] = kinds()[other].action;
      for (const std::string& error : errors_of(actions)) {
        EXPECT_THAT(error, AllOf(HasSubstr(kinds()[one].text), HasSubstr(kinds()[other].text)))
            << one << " against " << other << " on ranks " << ::testing::PrintToString(wrong);
      }
    }
  }
}

// Ranks that wait for a gather of a group and a reduction of its twin in different orders would wait for each other.
TEST(HostsIdentity, AnotherOrderOverAGroupAndItsTwinIsNamed) {
  const Action gather = [](Communicator& comm) {
    comm.all_gather(torch::zeros({8}), torch::ones({2}), id("a"))->wait();
  };
  const Action reduce = [](Communicator& comm) {
    comm.twin()->reduce_scatter(torch::zeros({2}), torch::ones({8}), {}, id("b"))->wait();
  };
  const auto one_after_other = [](const Action& first, const Action& second) {
    return [first, second](Communicator& comm) {
      comm.twin();  // collective
      first(comm);
      second(comm);
    };
  };
  for (const std::vector<size_t>& wrong : {std::vector<size_t>{0}, {2}, {0, 1}, {1, 3}}) {
    std::vector<Action> actions(4, one_after_other(gather, reduce));
    for (size_t rank : wrong) actions[rank] = one_after_other(reduce, gather);
    for (const std::string& error : errors_of(actions)) {
      EXPECT_THAT(error, AllOf(HasSubstr("all-gather of 'a'"), HasSubstr("reduce-scatter of 'b'"),
                               HasSubstr("in the same order")));
    }
  }
}

TEST(HostsIdentity, EarlierCollectivesStillEnd) {
  testing::run_ranks(4,
                     [](std::shared_ptr<Communicator> comm) {
                       at::Tensor output = torch::zeros({4});
                       const auto good =
                           comm->all_gather(output, torch::full({1}, static_cast<double>(comm->rank())), id("good"));
                       const char* name = comm->rank() == 2 ? "b" : "a";
                       const auto bad = comm->all_gather(torch::zeros({4}), torch::ones({1}), id(name));
                       good->wait();
                       EXPECT_TRUE(torch::equal(output, torch::arange(4, torch::kFloat)));
                       for (int repeat = 0; repeat < 2; ++repeat) {
                         const std::string error = error_of([&] {
                           if (repeat == 0) bad->wait();
                           comm->all_gather(torch::zeros({4}), torch::ones({1}), id("later"))->wait();
                         });
                         EXPECT_THAT(error, AllOf(HasSubstr("'a'"), HasSubstr("'b'"), HasSubstr("rank 2")));
                       }
                     },
                     {.communicator = "hosts"});
}

// ---------------------------------------------------------------- lost ranks

// One rank leaves while the others wait for it: all of them get an error soon.
TEST(HostsLoss, AllHearOfARankThatLeaves) {
  for (size_t kind = 0; kind < kinds().size(); ++kind) {
    const auto lost = static_cast<int>(kind % 4);
    std::vector<std::string> errors(4);
    testing::run_ranks(4,
                       [&](std::shared_ptr<Communicator> comm) {
                         comm->barrier(id("begin"));
                         if (comm->rank() == lost) return;
                         const auto began = std::chrono::steady_clock::now();
                         errors[static_cast<size_t>(comm->rank())] = error_of([&] { kinds()[kind].action(*comm); });
                         EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(3));
                       },
                       {.communicator = "hosts"});
    for (int rank = 0; rank < 4; ++rank) {
      if (rank == lost) continue;
      EXPECT_THAT(errors[static_cast<size_t>(rank)], HasSubstr("rank " + std::to_string(lost) + " is lost"))
          << kinds()[kind].text;
    }
  }
}

// Also ends a group that does not contain the rank that aborts.
TEST(HostsLoss, AbortEndsAllGroups) {
  testing::run_ranks(4,
                     [](std::shared_ptr<Communicator> comm) {
                       const int rank = comm->rank();
                       const auto host = comm->subgroup(rank < 2 ? std::vector{0, 1} : std::vector{2, 3}, id("host"));
                       const auto twin = comm->twin();
                       comm->barrier(id("begin"));
                       if (rank == 0) comm->abort("this is wrong");
                       const auto began = std::chrono::steady_clock::now();
                       const std::string error = error_of([&] {
                         for (;;) (rank == 3 ? twin : rank == 2 ? comm : host)->barrier(id("u"));
                       });
                       EXPECT_THAT(error, HasSubstr("this is wrong"));
                       EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(3));
                       error_of([&] {
                         for (;;) comm->barrier(id("end"));
                       });
                     },
                     {.communicator = "hosts"});
}

}  // namespace
}  // namespace fsdp::comm::hosts_failures_test
