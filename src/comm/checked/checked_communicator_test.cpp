// Tests ranks that issue different collectives over a backend that does not notice it.
#include "comm/checked/checked_communicator.h"

#include <filesystem>
#include <fstream>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "comm/fake_communicator.h"
#include "fsdp/backends.h"
#include "support/files/temporary_folder.h"
#include "support/ranks/thread_ranks.h"
#include "support/ranks/unchecked_communicator.h"

namespace fsdp::comm::checked_communicator_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::run_unchecked_ranks;

CollectiveId unit(const std::string& name, uint64_t generation = 0, Pass pass = Pass::kForward) {
  return {name, generation, pass};
}

DebugOptions level(CollectiveCheckLevel level) {
  DebugOptions debug;
  debug.collective_check.level = level;
  return debug;
}

std::shared_ptr<CheckedCommunicator> checked(const std::shared_ptr<Communicator>& inner, const DebugOptions& debug) {
  return CheckedCommunicator::over(inner, std::make_shared<CollectiveMonitor>(inner->rank(), debug), "world");
}

// Gathers rank() + 1 of each rank. Returns the value received from rank 0.
float gather(Communicator& group, const CollectiveId& id, int64_t numel = 4, at::ScalarType dtype = at::kFloat) {
  const auto input = torch::full({numel}, static_cast<float>(group.rank() + 1), dtype);
  auto output = torch::zeros({numel * group.size()}, dtype);
  group.all_gather(output, input, id)->wait();
  return output[0].to(at::kFloat).item<float>();
}

void reduce(Communicator& group, const CollectiveId& id) {
  auto output = torch::zeros({4});
  group.reduce_scatter(output, torch::ones({4 * group.size()}), {}, id)->wait();
}

using Body = std::function<void(CheckedCommunicator&)>;

// Returns the error of each rank, or "" if it throws nothing.
std::vector<std::string> errors_of(int ranks, const DebugOptions& debug, const Body& body,
                                   const testing::UncheckedOptions& options = {}) {
  std::vector<std::string> errors(static_cast<size_t>(ranks));
  run_unchecked_ranks(
      ranks,
      [&](std::shared_ptr<Communicator> inner) {
        const auto group = checked(inner, debug);
        try {
          body(*group);
        } catch (const c10::Error& error) {
          errors[static_cast<size_t>(inner->rank())] = error.what_without_backtrace();
        } catch (const std::exception& error) {
          errors[static_cast<size_t>(inner->rank())] = error.what();
        }
      },
      options);
  return errors;
}

struct Divergence {
  const char* name;
  void (*odd)(CheckedCommunicator&);    // run by the last rank
  void (*usual)(CheckedCommunicator&);  // run by the other ranks
  std::vector<const char*> parts;       // contained in every rank's error
};

const std::vector<Divergence> kDivergences = {
    {"skipped",
     [](auto& group) { gather(group, unit("b")); },
     [](auto& group) {
       gather(group, unit("a"));
       gather(group, unit("b"));
     },
     {"'a'", "'b'"}},
    {"swapped_equal_shapes",
     [](auto& group) {
       gather(group, unit("b"));
       gather(group, unit("a"));
     },
     [](auto& group) {
       gather(group, unit("a"));
       gather(group, unit("b"));
     },
     {"all-gather of 'a'", "all-gather of 'b'"}},
    {"misshapen",
     [](auto& group) { gather(group, unit("a"), 6); },
     [](auto& group) { gather(group, unit("a"), 4); },
     {"'a'", "elements of Float"}},
    {"other_dtype",
     [](auto& group) { gather(group, unit("a"), 4, at::kInt); },
     [](auto& group) { gather(group, unit("a"), 4, at::kFloat); },
     {"'a'", "elements of Int", "elements of Float"}},
    {"other_pass",
     [](auto& group) { gather(group, unit("a", 0, Pass::kBackward)); },
     [](auto& group) { gather(group, unit("a", 0, Pass::kForward)); },
     {"'a' (backward", "'a' (forward"}},
    {"other_kind",
     [](auto& group) { reduce(group, unit("a")); },
     [](auto& group) {
       auto output = torch::zeros({4 * group.size()});
       group.all_reduce(output, output, {}, unit("a"))->wait();
     },
     {"reduce-scatter of 'a'", "all-reduce of 'a'"}},
    {"one_generation_ahead",
     [](auto& group) { gather(group, unit("a", 1)); },
     [](auto& group) { gather(group, unit("a", 0)); },
     {"generation 1", "generation 0"}},
    {"one_step_ahead",
     [](auto& group) {
       group.monitor()->next_step();
       gather(group, unit("a"));
     },
     [](auto& group) { gather(group, unit("a")); },
     {"'a'", "at step 1", "at step 0"}},
    {"bytes",
     [](auto& group) { group.all_gather_bytes("x", unit("b")); },
     [](auto& group) { group.all_gather_bytes("xyz", unit("a")); },
     {"all-gather of bytes of 'a'", "all-gather of bytes of 'b'"}},
    {"in_the_twin",
     [](auto& group) { reduce(*group.twin(), unit("b")); },
     [](auto& group) { reduce(*group.twin(), unit("a")); },
     {"'a'", "'b'"}},
};

class Diverging : public ::testing::TestWithParam<std::tuple<Divergence, int>> {};
INSTANTIATE_TEST_SUITE_P(All, Diverging,
                         ::testing::Combine(::testing::ValuesIn(kDivergences), ::testing::Values(2, 3, 4)),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param).name) + "_" +
                                  std::to_string(std::get<1>(info.param));
                         });

TEST_P(Diverging, StopsAllRanksAndNamesUnitAndRank) {
  const auto& divergence = std::get<0>(GetParam());
  const int ranks = std::get<1>(GetParam());
  const auto errors = errors_of(ranks, level(CollectiveCheckLevel::kSampled), [&](CheckedCommunicator& group) {
    (group.rank() == ranks - 1 ? divergence.odd : divergence.usual)(group);
  });
  for (const std::string& error : errors) {
    EXPECT_THAT(error, HasSubstr(c10::str("rank ", ranks - 1, " issued ")));
    EXPECT_THAT(error, HasSubstr("where rank 0 issued "));
    for (const char* part : divergence.parts) EXPECT_THAT(error, HasSubstr(part));
  }
}

// Without checks, data of different units are mixed, and no rank notices it.
TEST(DivergingUnchecked, MixesData) {
  const auto errors = errors_of(2, level(CollectiveCheckLevel::kOff), [](CheckedCommunicator& group) {
    const auto gather_filled = [&](const std::string& name, float value) {
      auto output = torch::zeros({2});
      group.all_gather(output, torch::full({1}, value), unit(name))->wait();
      return output;
    };
    if (group.rank() == 0) {
      gather_filled("a", 10);
      gather_filled("b", 20);
    } else {
      EXPECT_TRUE(torch::equal(gather_filled("b", 21), torch::tensor({10.f, 21.f})));  // 10 is of 'a'
      EXPECT_TRUE(torch::equal(gather_filled("a", 11), torch::tensor({20.f, 11.f})));
    }
  });
  EXPECT_EQ(errors[0] + errors[1], "");
}

TEST(DivergingUnchecked, IsFoundOnlyInCheckedSteps) {
  DebugOptions debug;
  debug.collective_check = {CollectiveCheckLevel::kSampled, /*first_steps=*/1, /*every=*/3};
  const auto errors = errors_of(2, debug, [](CheckedCommunicator& group) {
    const auto step = [&](bool diverge) {
      gather(group, unit(diverge && group.rank() == 1 ? "b" : "a"));
      group.monitor()->next_step();
    };
    step(false);  // 0: checked
    step(true);   // 1
    step(true);   // 2
    EXPECT_EQ(group.monitor()->step(), 3);
    step(true);  // 3: checked
    ADD_FAILURE() << "step 3 has passed";
  });
  for (const std::string& error : errors) EXPECT_THAT(error, AllOf(HasSubstr("at step 3"), HasSubstr("rank 1 issued")));
}

TEST(CollectiveCheck, CoversTheFirstStepsAndEveryNth) {
  const CollectiveCheck sampled{CollectiveCheckLevel::kSampled, 2, 10};
  std::vector<int64_t> covered;
  for (int64_t step = 0; step < 25; ++step) {
    if (sampled.covers(step)) covered.push_back(step);
  }
  EXPECT_THAT(covered, ::testing::ElementsAre(0, 1, 10, 20));
  EXPECT_FALSE((CollectiveCheck{CollectiveCheckLevel::kSampled, 0, 0}.covers(0)));
  EXPECT_TRUE((CollectiveCheck{CollectiveCheckLevel::kAlways, 0, 0}.covers(7)));
  EXPECT_FALSE((CollectiveCheck{CollectiveCheckLevel::kOff, 2, 10}.covers(0)));
}

// A rank that diverges in a subgroup stops that group, and errors name the rank by its number in the world.
TEST(CheckedSubgroup, NamesRanksOfTheWorld) {
  const auto errors = errors_of(4, level(CollectiveCheckLevel::kAlways), [](CheckedCommunicator& group) {
    const bool low = group.rank() < 2;
    const auto half = group.subgroup(low ? std::vector<int>{0, 1} : std::vector<int>{2, 3}, unit("half"));
    gather(*half, unit("a"));
    gather(*half, unit(group.rank() == 3 ? "c" : "b"));
  });
  EXPECT_THAT(errors[2], AllOf(HasSubstr("rank 3 issued"), HasSubstr("rank 2 issued"), HasSubstr("'c'")));
  EXPECT_THAT(errors[3], AllOf(HasSubstr("rank 3 issued"), HasSubstr("rank 2 issued"), HasSubstr("'b'")));
}

// A divergence in one group stops ranks that wait in another group.
TEST(CheckedSubgroup, StopsTheOtherGroups) {
  const auto errors = errors_of(4, level(CollectiveCheckLevel::kAlways), [](CheckedCommunicator& group) {
    const bool low = group.rank() < 2;
    const auto half = group.subgroup(low ? std::vector<int>{0, 1} : std::vector<int>{2, 3}, unit("half"));
    if (!low) gather(*half, unit(group.rank() == 3 ? "c" : "b"));
    gather(group, unit("all"));
  });
  for (const std::string& error : errors) {
    EXPECT_THAT(error, AllOf(HasSubstr("rank 3 issued"), HasSubstr("'b'"), HasSubstr("'c'")));
  }
}

// The majority counts as right: of three ranks, the odd one is named first, even if it is rank 0.
TEST(CheckedCommunicatorWorld, TakesTheMajorityForRight) {
  const auto errors = errors_of(3, level(CollectiveCheckLevel::kAlways), [](CheckedCommunicator& group) {
    gather(group, unit(group.rank() == 0 ? "odd" : "usual"));
  });
  for (const std::string& error : errors) {
    EXPECT_THAT(error, AllOf(HasSubstr("rank 0 issued all-gather of 'odd'"), HasSubstr("where rank 1 issued")));
  }
}

// Rank 1 never issues its collective. The error of rank 0 names rank 1 and the unit.
TEST(CheckedCommunicatorWorld, ARankThatDoesNotCome) {
  testing::UncheckedOptions impatient;
  impatient.timeout = std::chrono::seconds(2);
  std::mutex at_end;
  at_end.lock();
  const auto errors = errors_of(
      2, level(CollectiveCheckLevel::kAlways),
      [&](CheckedCommunicator& group) {
        gather(group, unit("a"));
        if (group.rank() == 1) {
          std::lock_guard wait(at_end);
          return;
        }
        try {
          gather(group, unit("b"));
        } catch (...) {
          at_end.unlock();
          throw;
        }
        at_end.unlock();
      },
      impatient);
  EXPECT_THAT(errors[0], AllOf(HasSubstr("rank 0"), HasSubstr("'b'"), HasSubstr("rank 1 is late")));
}

TEST(CheckedCommunicatorWorld, WithoutAMeetingPointGivesAdvice) {
  testing::UncheckedOptions lonely;
  lonely.has_meeting_point = false;
  run_unchecked_ranks(
      2,
      [](std::shared_ptr<Communicator> inner) {
        try {
          checked(inner, {});
          ADD_FAILURE() << "no error";
        } catch (const c10::Error& error) {
          EXPECT_THAT(error.what_without_backtrace(),
                      AllOf(HasSubstr("unchecked"), HasSubstr("no meeting point"), HasSubstr("kOff")));
        }
        const auto group = checked(inner, level(CollectiveCheckLevel::kOff));
        EXPECT_EQ(gather(*group, unit("a")), 1.f);
      },
      lonely);
}

TEST(CheckedCommunicatorWorld, ThrowsRanksDiffer) {
  run_unchecked_ranks(2, [](std::shared_ptr<Communicator> inner) {
    const auto group = checked(inner, level(CollectiveCheckLevel::kAlways));
    EXPECT_THROW(gather(*group, unit(inner->rank() == 0 ? "a" : "b")), RanksDiffer);
  });
}

// Gloo compares by itself, so there are no further connections, and the error is Gloo's own.
TEST(CheckedCommunicatorWorld, LeavesGlooToItself) {
  try {
    testing::run_ranks(2, [](std::shared_ptr<Communicator> inner) {
      const auto group = checked(inner, level(CollectiveCheckLevel::kAlways));
      gather(*group, unit("a"));
      EXPECT_EQ(inner->bytes_sent(), 4u * 4u);
      gather(*group, unit(inner->rank() == 0 ? "a" : "b"));
    });
    ADD_FAILURE() << "no error";
  } catch (const std::runtime_error& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("while rank"), HasSubstr("'b'"), Not(HasSubstr("of its group"))));
  }
}

TEST(CheckedCommunicatorWorld, IsTheSameForOneCommunicator) {
  const auto inner = make_fake_communicator(0, 2);
  const auto monitor = std::make_shared<CollectiveMonitor>(0, DebugOptions{});
  auto first = CheckedCommunicator::over(inner, monitor, "world");
  EXPECT_EQ(CheckedCommunicator::over(inner, monitor, "world"), first);
  EXPECT_EQ(CheckedCommunicator::over(first, monitor, "world"), first);
  EXPECT_EQ(first->twin(), first->twin());
  gather(*first, unit("a"));
  first.reset();  // the group of the record stays with the communicator
  const auto second = CheckedCommunicator::over(inner, monitor, "world");
  gather(*second, unit("b"));
  EXPECT_THAT(monitor->record().text(), HasSubstr("#1 all-gather of 'b'"));
}

class Dump : public ::testing::Test {
 protected:
  static std::string read(const std::filesystem::path& path) {
    std::ifstream in(path);
    return {std::istreambuf_iterator<char>(in), {}};
  }

  const testing::TemporaryFolder temporary_;
  const std::filesystem::path folder_ = temporary_ / "inner";
};

TEST_F(Dump, HasTheLastCollectivesOfEachRank) {
  DebugOptions debug = level(CollectiveCheckLevel::kAlways);
  debug.dump_folder = folder_;
  const auto errors = errors_of(2, debug, [](CheckedCommunicator& group) {
    gather(group, unit("fine"));
    reduce(*group.twin(), unit("grads"));
    gather(group, unit(group.rank() == 0 ? "a" : "b"));
  });
  for (int rank = 0; rank < 2; ++rank) {
    const auto path = folder_ / c10::str("collectives_rank", rank, ".txt");
    EXPECT_THAT(errors[static_cast<size_t>(rank)], HasSubstr(path.string()));
    EXPECT_THAT(
        read(path),
        AllOf(HasSubstr("rank 1 issued"),
              HasSubstr(c10::str("rank ", rank, ", #0 all-gather of 'fine' (forward, generation 0), 8 elements of ",
                                 "Float in group 'world': done after")),
              HasSubstr("#0 reduce-scatter of 'grads' (forward, generation 0), 8 elements of Float in group 'world, "
                        "twin': done after"),
              HasSubstr(rank == 0 ? "#1 all-gather of 'a'" : "#1 all-gather of 'b'"), HasSubstr(": failed after")));
  }
}

TEST_F(Dump, ThatCannotBeWrittenIsSaid) {
  DebugOptions debug = level(CollectiveCheckLevel::kAlways);
  debug.dump_folder = "/proc/no such folder";
  const auto errors =
      errors_of(2, debug, [](CheckedCommunicator& group) { gather(group, unit(group.rank() == 0 ? "a" : "b")); });
  EXPECT_THAT(errors[0], AllOf(HasSubstr("rank 1 issued"), HasSubstr("could not be written")));
}

}  // namespace
}  // namespace fsdp::comm::checked_communicator_test
