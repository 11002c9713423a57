// Tests that a program can tell errors apart by their type: docs/errors.md lists the types.
#include <fsdp/errors.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <thread>

#include "fsdp/backends.h"
#include "fsdp/checkpoint.h"
#include "fsdp/fully_shard.h"
#include "fsdp/interruption.h"
#include "fsdp/trace.h"
#include "support/faults/error_of.h"
#include "support/files/temporary_folder.h"
#include "support/ranks/thread_ranks.h"
#include "support/training/sharding.h"

namespace fsdp::errors_test {
namespace {

using ::testing::AnyOf;
using ::testing::Each;
using ::testing::HasSubstr;
using testing::run_ranks;

const std::filesystem::path kNowhere = "/proc/nowhere/folder";  // cannot be created

CollectiveId id(const std::string& name) { return {name, 0, Pass::kUser}; }

void gather(Communicator& comm, const std::string& name, int64_t numel = 4) {
  comm.all_gather(torch::zeros({4 * comm.size()}), torch::ones({numel}), id(name))->wait();
}

// Returns the most derived type that a program can catch.
std::string type_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const RankLost&) {
    return "RankLost";
  } catch (const RankLate&) {
    return "RankLate";
  } catch (const RanksDiffer&) {
    return "RanksDiffer";
  } catch (const WaitInterrupted&) {
    return "WaitInterrupted";
  } catch (const CommunicationError&) {
    return "CommunicationError";
  } catch (const c10::DistStoreError&) {
    return "DistStoreError";
  } catch (const TraceNotWritten&) {
    return "TraceNotWritten";
  } catch (const StepFailed&) {
    return "StepFailed";
  } catch (const ErrorOfAllRanks&) {
    return "ErrorOfAllRanks";
  } catch (const FileError&) {
    return "FileError";
  } catch (const c10::Error&) {
    return "Error";
  } catch (const std::exception&) {
    return "exception";
  }
  return "none";
}

class ErrorsOf : public ::testing::TestWithParam<const char*> {
 protected:
  // Runs `body` on each rank; returns the type of each rank's error.
  std::vector<std::string> types(int ranks, std::chrono::milliseconds timeout,
                                 const std::function<void(Communicator&)>& body) {
    std::vector<std::string> types(static_cast<size_t>(ranks));
    run_ranks(ranks,
              [&](std::shared_ptr<Communicator> comm) {
                types[static_cast<size_t>(comm->rank())] = type_of([&] { body(*comm); });
              },
              {.timeout = timeout, .communicator = GetParam()});
    return types;
  }
};

INSTANTIATE_TEST_SUITE_P(Communicators, ErrorsOf, ::testing::Values("gloo", "shm"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(ErrorsOf, ARankThatLeaves) {
  const auto found = types(2, std::chrono::hours(1), [](Communicator& comm) {
    if (comm.rank() == 0) gather(comm, "a");
  });
  EXPECT_EQ(found, (std::vector<std::string>{"RankLost", "none"}));
}

TEST_P(ErrorsOf, ARankThatIsLate) {
  std::atomic<bool> has_waited{false};
  const auto found = types(2, std::chrono::milliseconds(100), [&](Communicator& comm) {
    if (comm.rank() == 1) {
      while (!has_waited) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      return;
    }
    std::string type = type_of([&] { gather(comm, "a"); });
    EXPECT_EQ(type_of([&] { gather(comm, "b"); }), "CommunicationError") << "the group has failed before";
    has_waited = true;
    EXPECT_EQ(type, "RankLate");
  });
  EXPECT_THAT(found, Each(std::string("none")));
}

TEST_P(ErrorsOf, AWaitThatIsInterrupted) {
  std::atomic<bool> has_waited{false};
  types(2, std::chrono::hours(1), [&](Communicator& comm) {
    if (comm.rank() == 1) {
      while (!has_waited) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      EXPECT_EQ(type_of([&] {
                  gather(comm, "a");  // may succeed over shared memory, where the other rank's data are in place
                  gather(comm, "b");
                }),
                "RankLost");
      return;
    }
    interrupt_waits();
    EXPECT_EQ(type_of([&] { gather(comm, "a"); }), "WaitInterrupted");
    allow_waits();
    has_waited = true;
  });
}

TEST_P(ErrorsOf, RanksThatDiffer) {
  const auto found =
      types(2, std::chrono::hours(1), [](Communicator& comm) { gather(comm, comm.rank() == 0 ? "a" : "b"); });
  EXPECT_THAT(found, Each(AnyOf(std::string("RanksDiffer"), std::string("RankLost"))));
  EXPECT_THAT(found, ::testing::Contains(std::string("RanksDiffer")));
}

TEST_P(ErrorsOf, AWrongArgument) {
  EXPECT_THAT(types(2, std::chrono::hours(1), [](Communicator& comm) { gather(comm, "a", 3); }),
              Each(std::string("Error")));
}

TEST(Errors, AreThoseOfTorchDistributed) {
  EXPECT_THROW(throw RankLost("", nullptr), CommunicationError);
  EXPECT_THROW(throw RankLate("", nullptr), CommunicationError);
  EXPECT_THROW(throw RanksDiffer("", nullptr), c10::DistBackendError);
  EXPECT_THROW(throw WaitInterrupted("", nullptr), CommunicationError);
  EXPECT_THROW(throw CommunicationError("", nullptr), c10::DistError);
}

TEST(Errors, AStoreThatCannotBeReached) {
  const RankEnvironment environment{
      .rank = 1, .world_size = 2, .local_rank = 1, .local_world_size = 2, .master_port = 1};
  GlooOptions options;
  options.timeout = std::chrono::milliseconds(50);
  EXPECT_EQ(type_of([&] { make_gloo_communicator(environment, options); }), "DistStoreError");
}

TEST(Errors, AFolderThatCannotBeMade) {
  torch::nn::Linear linear(2, 2);
  Options options = testing::one_rank_options();
  options.offload_path = kNowhere.string();
  try {
    fully_shard(*linear, options);
    ADD_FAILURE() << "no error";
  } catch (const FileError& error) {
    EXPECT_THAT(error.what(), HasSubstr(kNowhere.string()));
    EXPECT_STREQ(error.what(), error.what_without_backtrace());
  }
}

// All ranks have the error and continue together.
TEST(Errors, OfAllRanks) {
  const testing::TemporaryFolder folder;
  run_ranks(2, [&](std::shared_ptr<Communicator> comm) {
    Options options;
    options.communicator = comm;
    torch::nn::Linear linear(3, 3), other(3, 4);
    const auto sharded = fully_shard(*linear, options), of_other = fully_shard(*other, options);
    const CheckpointedRun run{*sharded, *linear}, other_run{*of_other, *other};
    EXPECT_EQ(type_of([&] { save_checkpoint(kNowhere, run, "{}", *comm); }), "StepFailed");
    EXPECT_EQ(type_of([&] { write_trace(kNowhere, *comm, {}); }), "TraceNotWritten");
    save_checkpoint(folder / "a", run, "{}", *comm);
    EXPECT_EQ(type_of([&] { load_checkpoint(folder / "a", other_run, *comm); }), "ErrorOfAllRanks");
    EXPECT_EQ(type_of([&] { load_checkpoint(folder / "b", run, *comm); }), "StepFailed");
    gather(*comm, "a");
  });
}

}  // namespace
}  // namespace fsdp::errors_test
