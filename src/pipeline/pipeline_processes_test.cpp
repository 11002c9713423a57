// Tests pipelines whose ranks are processes, of which one is killed or stopped in the middle of a step.
#include <gmock/gmock.h>
#include <signal.h>

#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "comm/meeting/free_port.h"
#include "fsdp/backends.h"
#include "fsdp/pipeline.h"
#include "pipeline/testing/stages.h"
#include "support/faults/error_of.h"
#include "support/ranks/child_process.h"

namespace fsdp::pipeline::pipeline_processes_test {
namespace {

using ::testing::AllOf;
using testing::Child;
using ::testing::Contains;
using ::testing::ContainsRegex;
using ::testing::Each;
using testing::error_of;
using ::testing::HasSubstr;
using testing::say;
using testing::StagesOfRank;
using enum ShardingStrategy;
using namespace std::chrono_literals;

constexpr int kRanks = 4;  // two stages over two data-parallel ranks each

std::shared_ptr<Communicator> make_communicator(const std::string& kind) {
  GlooOptions options;
  options.timeout = 5s;
  return kind == "shm" ? make_shm_communicator(rank_environment(), options)
                       : make_gloo_communicator(rank_environment(), options);
}

// Trains over `kind` until a step fails.
void be_child(const std::string& kind) {
  StagesOfRank stages(make_communicator(kind), make_pipeline_schedule("1F1B", 2, 1, 4), kFullShard);
  for (int step = 0;; ++step) {
    stages.sharded(0).zero_grad();
    stages.pipeline().step();
    if (step == 0) say("training");
  }
}

TEST(ChildProcess, DISABLED_Main) {
  const char* kind = std::getenv("FSDP_TEST_CHILD");
  ASSERT_NE(kind, nullptr) << "for child processes only";
  say(error_of([&] { be_child(kind); }));
}

// Starts the ranks and sends `signal` to one of them when all train. Returns what the others say until they end.
std::vector<std::string> texts_of_others(const std::string& kind, int victim, int signal) {
  const comm::FreePort port;
  std::vector<std::unique_ptr<Child>> children;
  for (int rank = 0; rank < kRanks; ++rank) {
    children.push_back(std::make_unique<Child>(kind, rank, kRanks, port.number()));
  }
  for (auto& child : children) EXPECT_EQ(child->read_line(), "training");
  std::this_thread::sleep_for(50ms);
  children[static_cast<size_t>(victim)]->signal(signal);
  std::vector<std::string> texts;
  for (int rank = 0; rank < kRanks; ++rank) {
    if (rank != victim) texts.push_back(children[static_cast<size_t>(rank)]->finish());
  }
  return texts;
}

TEST(PipelineProcesses, AKilledRankIsNamedByAllOthers) {
  for (const std::string kind : {"gloo", "shm"}) {
    for (const int victim : {0, 3}) {
      for (const std::string& text : texts_of_others(kind, victim, SIGKILL)) {
        EXPECT_THAT(text, AllOf(HasSubstr("Pipeline: "), HasSubstr("rank " + std::to_string(victim) + " is lost")))
            << kind;
      }
    }
  }
}

// The others end after the timeout. Those that wait for the stopped one name it as late. The rest wait for those, and
// name them: as late, or as lost if they have ended by then.
TEST(PipelineProcesses, AStoppedRankEndsAllOthersWhoSayForWhomTheyWaited) {
  for (const std::string kind : {"gloo", "shm"}) {
    const std::vector<std::string> texts = texts_of_others(kind, 1, SIGSTOP);
    EXPECT_THAT(texts, Each(AllOf(HasSubstr("Pipeline: "), ContainsRegex(" is late; waited |rank [023] is lost: "))))
        << kind;
    EXPECT_THAT(texts, Contains(HasSubstr("rank 1 is late; waited "))) << kind;
  }
}

}  // namespace
}  // namespace fsdp::pipeline::pipeline_processes_test
