// Tests errors of the communicator over NCCL: missing libraries and devices, ranks that differ, failures on one rank.
// The library is a fake one.
#include "comm/nccl/nccl_communicator.h"

#include <atomic>
#include <thread>

#include "base/device_stream.h"
#include "base/finally.h"
#include "comm/testing/collectives.h"
#include "fsdp/backends.h"
#include "fsdp/errors.h"
#include "fsdp/interruption.h"
#include "support/devices/simulated_device.h"
#include "support/faults/error_of.h"
#include "support/ranks/nccl_ranks.h"

namespace fsdp::comm::nccl_failures_test {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using testing::error_of;
using testing::fake_nccl_path;
using ::testing::HasSubstr;
using testing::id;
using testing::run_nccl_ranks;
using testing::simulated_device;

constexpr int kSystemError = 2;  // value in nccl.h
constexpr int kRemoteError = 6;

void gather(Communicator& comm, const std::string& name, int64_t numel = 4) {
  auto output = torch::zeros({numel * comm.size()});
  comm.all_gather(output, torch::ones({numel}), id(name))->wait();
}

void reduce_with_flags(Communicator& comm, const std::string& name) {
  auto tensor = torch::ones({4});
  std::vector<uint64_t> flags(1);
  comm.all_reduce(tensor, tensor, {}, id(name), &flags)->wait();
}

NcclOptions without_blocking(std::chrono::milliseconds timeout) {
  NcclOptions options;
  options.timeout = timeout;
  options.blocking = false;
  return options;
}

class NcclFailures : public testing::WithFakeNccl {
 protected:
  // Returns the error of `body` on each rank.
  std::vector<std::string> errors_of_ranks(int size, const std::function<void(Communicator&)>& body,
                                           const NcclOptions& options = {}) {
    std::vector<std::string> errors(static_cast<size_t>(size));
    run_nccl_ranks(
        size, c10::kCPU,
        [&](std::shared_ptr<Communicator> comm) {
          errors[static_cast<size_t>(comm->rank())] = error_of([&] { body(*comm); });
        },
        options);
    return errors;
  }

  std::string error_of_library(const std::string& path) {
    return error_of([&] { make_nccl_communicator(nullptr, 0, 1, {}, {c10::kCPU, path}); });
  }
};

TEST_F(NcclFailures, LibraryThatIsNotThere) {
  EXPECT_THAT(error_of_library("/nowhere/libnccl.so.2"),
              AllOf(HasSubstr("/nowhere/libnccl.so.2 cannot be opened"), HasSubstr("nvidia-nccl-cu13"),
                    HasSubstr("FSDP_NCCL_LIBRARY")));
}

TEST_F(NcclFailures, LibraryThatIsAnother) {
  EXPECT_THAT(error_of_library("libm.so.6"), HasSubstr("libm.so.6 has no function ncclGetVersion"));
}

TEST_F(NcclFailures, LibraryThatIsTooOld) {
  fake.set_version(21003);
  EXPECT_THAT(error_of_library(fake_nccl_path()), AllOf(HasSubstr("has version 2.10.3"), HasSubstr("2.14.3")));
  fake.set_version(30100);
  EXPECT_THAT(error_of_library(fake_nccl_path()), HasSubstr("has version 3.1.0"));
}

TEST_F(NcclFailures, LibraryIsNamedByTheEnvironment) {
  setenv("FSDP_NCCL_LIBRARY", "/named/by/the/environment.so", 1);
  EXPECT_THAT(error_of_library(""), HasSubstr("/named/by/the/environment.so cannot be opened"));
  setenv("FSDP_NCCL_LIBRARY", fake_nccl_path().c_str(), 1);
  EXPECT_EQ(error_of_library(""), "no error");
  unsetenv("FSDP_NCCL_LIBRARY");
}

TEST_F(NcclFailures, TensorsElsewhere) {
  run_nccl_ranks(1, simulated_device(), [](std::shared_ptr<Communicator> comm) {
    EXPECT_THAT(error_of([&] { gather(*comm, "a"); }),
                AllOf(HasSubstr("all-gather of 'a'"), HasSubstr("simulated:0; this one is on cpu")));
  });
}

TEST_F(NcclFailures, ACallThatFailsEndsAllRanksAndGroups) {
  fake.fail_next("ncclAllGather", 1, kSystemError);
  run_nccl_ranks(3, c10::kCPU, [](std::shared_ptr<Communicator> comm) {
    auto twin = comm->twin();
    if (comm->rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(100));  // the others are inside NCCL
    const auto reason = AllOf(
        HasSubstr("rank 1 of 3 cannot finish its all-gather of 'a' (forward, generation 0) over NCCL 2."),
        HasSubstr("on cpu: unhandled system error (the fake library's last words)"), HasSubstr("NCCL_SOCKET_IFNAME"));
    EXPECT_THAT(error_of([&] { gather(*comm, "a"); }), reason);
    EXPECT_THAT(error_of([&] { gather(*comm, "b"); }), reason);
    EXPECT_THROW(gather(*comm, "b"), CommunicationError);
    EXPECT_THAT(error_of([&] { comm->barrier(id("c")); }), reason);
    EXPECT_THAT(error_of([&] { gather(*twin, "d"); }), reason);
  });
}

TEST_F(NcclFailures, ErrorsThatCameInTheMeantimeAreSeenInWait) {
  run_nccl_ranks(1, c10::kCPU, [&](std::shared_ptr<Communicator> comm) {
    auto output = torch::zeros({4});
    auto work = comm->all_gather(output, torch::ones({4}), id("a"));
    fake.set_async_error(0, kSystemError);
    EXPECT_THAT(error_of([&] { work->wait(); }), AllOf(HasSubstr("all-gather of 'a'"), HasSubstr("system error")));
  });
}

TEST_F(NcclFailures, ARemoteErrorWithoutAReasonIsAnErrorToo) {
  run_nccl_ranks(1, c10::kCPU, [&](std::shared_ptr<Communicator> comm) {
    fake.set_async_error(0, kRemoteError);
    EXPECT_THAT(error_of([&] { gather(*comm, "a"); }), HasSubstr("Another rank ended or failed"));
    EXPECT_THROW(gather(*comm, "b"), RankLost);
  });
}

TEST_F(NcclFailures, SetUpThatFailsOnOneRank) {
  fake.fail_next("ncclCommInitRankConfig", 1, kSystemError);
  EXPECT_THAT(error_of([&] {
                run_nccl_ranks(
                    2, simulated_device(), [](std::shared_ptr<Communicator>) {},
                    without_blocking(std::chrono::milliseconds(500)));
              }),
              HasSubstr("rank 1 of 2 cannot finish its set-up of 'group'"));
}

TEST_F(NcclFailures, CallsThatNeverEnd) {
  fake.set_in_progress(1 << 30);
  EXPECT_THAT(error_of([&] {
                run_nccl_ranks(
                    1, c10::kCPU, [](std::shared_ptr<Communicator>) {},
                    without_blocking(std::chrono::milliseconds(100)));
              }),
              HasSubstr("it was not done within 100 ms"));
}

// fsdp::interrupt_waits() acts on the whole process, in which all ranks are threads here.
TEST_F(NcclFailures, CallsThatAreInterrupted) {
  const base::Finally allowed(&allow_waits);
  fake.set_in_progress(1 << 30);
  std::thread user([] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    interrupt_waits();
  });
  EXPECT_THAT(
      error_of([&] {
        run_nccl_ranks(1, c10::kCPU, [](std::shared_ptr<Communicator>) {}, without_blocking(std::chrono::hours(1)));
      }),
      AllOf(HasSubstr("rank 0 of 1 cannot finish its set-up"), HasSubstr("it was interrupted while it waited")));
  user.join();
}

// A rank waits for the flags of another one, which is late.
TEST_F(NcclFailures, FlagsThatAreInterrupted) {
  const base::Finally allowed(&allow_waits);
  std::atomic<bool> ended{false};
  NcclOptions options;
  options.timeout = std::chrono::hours(1);
  const auto reduce = [](Communicator& comm) {
    auto tensor = torch::empty({4}, simulated_device()).fill_(1);
    std::vector<uint64_t> flags(1);
    comm.all_reduce(tensor, tensor, {}, id("a"), &flags)->wait();
  };
  run_nccl_ranks(
      2, simulated_device(),
      [&](std::shared_ptr<Communicator> comm) {
        if (comm->rank() == 1) {
          while (!ended) std::this_thread::sleep_for(std::chrono::milliseconds(1));
          EXPECT_THAT(error_of([&] { reduce(*comm); }),
                      AllOf(HasSubstr("rank 0 cannot finish"), HasSubstr("it was interrupted while it waited")));
          return;
        }
        std::thread user([] {
          std::this_thread::sleep_for(std::chrono::milliseconds(100));
          interrupt_waits();
        });
        EXPECT_THROW(reduce(*comm), WaitInterrupted);
        user.join();
        allow_waits();
        ended = true;
      },
      options);
}

// Mixed-up gathers of equal size: NCCL cannot detect them, but the next exchange of flags does.
TEST_F(NcclFailures, RanksThatDifferAreFoundWithTheNextFlags) {
  const auto errors = errors_of_ranks(2, [](Communicator& comm) {
    gather(comm, comm.rank() == 0 ? "a" : "b");
    gather(comm, comm.rank() == 0 ? "b" : "a");
    reduce_with_flags(comm, "c");
  });
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("rank 0 issues all-reduce of 'c, after 3 collectives"),
                                 HasSubstr("rank 1 issues all-reduce of 'c, after 3 collectives"),
                                 HasSubstr("The latest that this rank issued"))));
  EXPECT_THAT(errors[0],
              HasSubstr("all-gather of 'a' (forward, generation 0), 8 elements of Float; all-gather of 'b'"));
  EXPECT_THAT(errors[1],
              HasSubstr("all-gather of 'b' (forward, generation 0), 8 elements of Float; all-gather of 'a'"));
}

TEST_F(NcclFailures, RanksThatDifferAreFoundAtABarrier) {
  const auto errors = errors_of_ranks(2, [](Communicator& comm) {
    gather(comm, comm.rank() == 0 ? "a" : "b");
    comm.barrier(id("c"));
  });
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("rank 0 issues all-gather of bytes of 'c, after 1 collectives"),
                                 HasSubstr("rank 1 issues"))));
}

TEST_F(NcclFailures, RanksThatDifferAreFoundAtOnceOnRequest) {
  NcclOptions options;
  options.compare_every_collective = true;
  const auto errors =
      errors_of_ranks(2, [](Communicator& comm) { gather(comm, comm.rank() == 0 ? "a" : "b"); }, options);
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("rank 0 issues all-gather of 'a, "),
                                 HasSubstr("rank 1 issues all-gather of 'b, "), HasSubstr("8 elements"))));
}

// A rank leaves: the others learn of it from their hosts while they wait for its flags.
TEST_F(NcclFailures, ARankThatLeaves) {
  std::vector<std::string> errors(2);
  run_nccl_ranks(2, simulated_device(), [&](std::shared_ptr<Communicator> comm) {
    if (comm->rank() == 1) return;
    auto tensor = torch::empty({4}, simulated_device()).fill_(1);
    std::vector<uint64_t> flags(1);
    errors[0] = error_of([&] { comm->all_reduce(tensor, tensor, {}, id("a"), &flags)->wait(); });
  });
  EXPECT_THAT(errors[0], AllOf(HasSubstr("all-reduce of 'a"), HasSubstr("rank 1 is lost")));
}

TEST(NcclFactory, NamesTheMissingRequirement) {
  if (base::device_count(c10::kCUDA) > 0) GTEST_SKIP() << "there is a CUDA device";
  const auto error = error_of([] { make_nccl_communicator(RankEnvironment{}); });
  EXPECT_THAT(error, HasSubstr(nccl_is_built_in() ? "there is no CUDA device" : "scripts/nccl_headers.sh"));
  EXPECT_THAT(error, HasSubstr("make_gloo_communicator"));
}

}  // namespace
}  // namespace fsdp::comm::nccl_failures_test
