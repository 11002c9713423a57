// Ranks that issue different collectives get errors that name both, on every rank, and nothing hangs.
#include <chrono>

#include "comm/testing/faulty_communicator.h"
#include "fsdp/communicator.h"
#include "support/faults/error_of.h"
#include "support/ranks/thread_ranks.h"

namespace fsdp::comm::identity_test {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using testing::error_of;
using ::testing::HasSubstr;
using testing::run_ranks;

CollectiveId id(const std::string& name, Pass pass = Pass::kForward, uint64_t generation = 3) {
  return {name, generation, pass};
}

std::unique_ptr<Work> gather(Communicator& comm, const CollectiveId& id, int64_t numel = 8,
                             at::ScalarType dtype = at::kFloat) {
  return comm.all_gather(torch::zeros({numel * comm.size()}, dtype), torch::ones({numel}, dtype), id);
}

std::unique_ptr<Work> reduce(Communicator& comm, const CollectiveId& id, int64_t numel = 8, double scale = 1) {
  return comm.reduce_scatter(torch::zeros({numel}), torch::ones({numel * comm.size()}), {scale}, id);
}

// Runs actions[r] on rank r and returns the error of each rank. All ranks keep their communicator until the last has
// ended.
using Action = std::function<void(Communicator&)>;
std::vector<std::string> errors_of(const std::vector<Action>& actions) {
  std::vector<std::string> errors(actions.size());
  run_ranks(static_cast<int>(actions.size()), [&](std::shared_ptr<Communicator> comm) {
    const auto rank = static_cast<size_t>(comm->rank());
    errors[rank] = error_of([&] { actions[rank](*comm); });
  });
  return errors;
}

auto names_both(const std::string& first, const std::string& second) {
  return AllOf(HasSubstr(first), HasSubstr(second), HasSubstr("rank 0 issues"), HasSubstr("rank 1 issues"));
}

TEST(Identity, OtherUnitOfEqualSize) {
  const auto errors =
      errors_of({[](auto& comm) { gather(comm, id("a"))->wait(); }, [](auto& comm) { gather(comm, id("b"))->wait(); }});
  EXPECT_THAT(errors[0], HasSubstr("rank 0 issues all-gather of 'a' (forward, generation 3)"));
  EXPECT_THAT(errors[0], HasSubstr("while rank 1 issues all-gather of 'b' (forward, generation 3)"));
  EXPECT_THAT(errors[1], HasSubstr("rank 1 issues all-gather of 'b' (forward, generation 3)"));
  EXPECT_THAT(errors[1], HasSubstr("while rank 0 issues all-gather of 'a' (forward, generation 3)"));
}

// The collectives that the two ranks issue, and the texts that the errors of both must contain.
struct Mismatch {
  const char* name;
  Action first;
  Action second;
  const char* first_text;
  const char* second_text;
};

class Mismatches : public ::testing::TestWithParam<Mismatch> {};

TEST_P(Mismatches, FailOnBothRanks) {
  const auto errors = errors_of({GetParam().first, GetParam().second});
  EXPECT_THAT(errors[0], names_both(GetParam().first_text, GetParam().second_text));
  EXPECT_THAT(errors[1], names_both(GetParam().first_text, GetParam().second_text));
}

INSTANTIATE_TEST_SUITE_P(
    All, Mismatches,
    ::testing::Values(Mismatch{"pass", [](auto& comm) { gather(comm, id("a"))->wait(); },
                               [](auto& comm) { gather(comm, id("a", Pass::kBackward))->wait(); }, "forward",
                               "backward"},
                      Mismatch{"generation", [](auto& comm) { gather(comm, id("a"))->wait(); },
                               [](auto& comm) { gather(comm, id("a", Pass::kForward, 4))->wait(); }, "generation 3",
                               "generation 4"},
                      Mismatch{"kind", [](auto& comm) { gather(comm, id("a"))->wait(); },
                               [](auto& comm) { reduce(comm, id("a"))->wait(); }, "all-gather", "reduce-scatter"},
                      Mismatch{"size", [](auto& comm) { gather(comm, id("a"), 8)->wait(); },
                               [](auto& comm) { gather(comm, id("a"), 9)->wait(); }, "16 elements", "18 elements"},
                      Mismatch{"large_size", [](auto& comm) { gather(comm, id("a"), 1 << 20)->wait(); },
                               [](auto& comm) { gather(comm, id("a"), 1 << 19)->wait(); }, "2097152", "1048576"},
                      Mismatch{"dtype", [](auto& comm) { gather(comm, id("a"), 8, at::kHalf)->wait(); },
                               [](auto& comm) { gather(comm, id("a"), 8, at::kBFloat16)->wait(); }, "Half", "BFloat16"},
                      Mismatch{"scale", [](auto& comm) { reduce(comm, id("a"), 8, 0.5)->wait(); },
                               [](auto& comm) { reduce(comm, id("a"), 8, 0.25)->wait(); }, "scale 0.5", "scale 0.25"},
                      Mismatch{"root", [](auto& comm) { comm.broadcast(torch::ones({3}), 0, id("a"))->wait(); },
                               [](auto& comm) { comm.broadcast(torch::ones({3}), 1, id("a"))->wait(); }, "from rank 0",
                               "from rank 1"},
                      Mismatch{"bytes", [](auto& comm) { comm.all_gather_bytes("x", id("a")); },
                               [](auto& comm) { comm.all_gather_bytes("x", id("b")); }, "'a'", "'b'"},
                      Mismatch{"output_dtype",
                               [](auto& comm) {
                                 auto t = torch::ones({5});
                                 comm.all_reduce(t, t, {}, id("a"))->wait();
                               },
                               [](auto& comm) {
                                 auto t = torch::ones({5});
                                 comm.all_reduce(torch::ones({5}, at::kBFloat16), t, {}, id("a"))->wait();
                               },
                               "of Float", "into BFloat16"}),
    [](const auto& info) { return info.param.name; });

TEST(Identity, FlagsOfOtherLength) {
  const auto with_flags = [](size_t words) {
    return [words](Communicator& comm) {
      std::vector<uint64_t> flags(words);
      comm.reduce_scatter(torch::zeros({1}), torch::ones({2}), {}, id("a"), &flags)->wait();
    };
  };
  const auto errors = errors_of({with_flags(100), with_flags(101)});
  for (const auto& error : errors) EXPECT_THAT(error, names_both("100 words", "101 words"));
}

// One of three ranks is wrong: the other two must detect it, too, whichever rank they compare with first.
TEST(Identity, OneOfThreeIsWrong) {
  for (int wrong = 0; wrong < 3; ++wrong) {
    std::vector<Action> actions(3, [](auto& comm) { gather(comm, id("a"))->wait(); });
    actions[static_cast<size_t>(wrong)] = [](auto& comm) { gather(comm, id("b"))->wait(); };
    for (const auto& error : errors_of(actions)) EXPECT_THAT(error, AllOf(HasSubstr("'a'"), HasSubstr("'b'"))) << wrong;
  }
}

TEST(Identity, EarlierCollectivesEndAndLaterOnesGiveTheReason) {
  run_ranks(2, [](std::shared_ptr<Communicator> comm) {
    auto output = torch::zeros({4});
    auto good = comm->all_gather(output, torch::full({2}, static_cast<float>(comm->rank())), id("good"));
    auto bad = gather(*comm, id(comm->rank() == 0 ? "a" : "b"), 1 << 16);
    auto later = gather(*comm, id("later"));
    good->wait();
    EXPECT_TRUE(torch::equal(output, torch::tensor({0.f, 0.f, 1.f, 1.f})));
    EXPECT_THAT(error_of([&] { bad->wait(); }), names_both("'a'", "'b'"));
    EXPECT_THAT(error_of([&] { gather(*comm, id("c")); }), names_both("'a'", "'b'"));
    EXPECT_THAT(error_of([&] { comm->all_gather_bytes("", id("c")); }), names_both("'a'", "'b'"));
    EXPECT_THAT(error_of([&] { later->wait(); }), names_both("'a'", "'b'"));
  });
}

// Rank 1 skips unit b and continues with c: detected at b, not delivered as wrong data of c.
TEST(Identity, ARankThatSkipsACollective) {
  std::vector<std::string> errors(2);
  run_ranks(2, [&](std::shared_ptr<Communicator> inner) {
    std::vector<Fault> faults;
    if (inner->rank() == 1) faults.push_back({1, Fault::What::kSkip});
    FaultyCommunicator comm(inner, faults);
    errors[static_cast<size_t>(comm.rank())] = error_of([&] {
      for (const char* unit : {"a", "b", "c"}) gather(comm, id(unit))->wait();
    });
  });
  for (const auto& error : errors) EXPECT_THAT(error, names_both("'b'", "'c'"));
}

// Gathers of the same unit differ in their generation.
TEST(Identity, ARankThatSkipsAGeneration) {
  const auto errors = errors_of({[](auto& comm) {
                                   for (uint64_t g : {0, 1, 2}) gather(comm, id("a", Pass::kForward, g))->wait();
                                 },
                                 [](auto& comm) {
                                   for (uint64_t g : {0, 2}) gather(comm, id("a", Pass::kForward, g))->wait();
                                 }});
  for (const auto& error : errors) EXPECT_THAT(error, names_both("generation 1", "generation 2"));
}

}  // namespace
}  // namespace fsdp::comm::identity_test
