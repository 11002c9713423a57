// Tests ranks as processes that meet over TCP: ends by SIGKILL, ports in use, ranks claimed twice, masters out of
// reach. A child process runs this test program again (support/ranks/child_process.h).
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <random>
#include <thread>

#include "comm/meeting/free_port.h"
#include "comm/testing/collectives.h"
#include "comm/testing/stress.h"
#include "fsdp/backends.h"
#include "fsdp/communicator.h"
#include "fsdp/memory_sharing.h"
#include "support/faults/error_of.h"
#include "support/ranks/child_process.h"

namespace fsdp::comm::processes_test {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using testing::Child;
using testing::error_of;
using ::testing::HasSubstr;
using testing::id;
using testing::Listener;
using testing::say;
using namespace std::chrono_literals;

// Elements of a transfer that is still running when the next statement kills the process.
constexpr int64_t kLarge = int64_t{1} << 25;

void gather(Communicator& comm, const std::string& name, uint64_t generation, int64_t numel) {
  comm.all_gather(torch::zeros({numel * comm.size()}), torch::ones({numel}), id(name, generation))->wait();
}

GlooOptions with_timeout(std::chrono::milliseconds timeout) {
  GlooOptions options;
  options.timeout = timeout;
  return options;
}

bool over_shared_memory() {
  const char* name = std::getenv("FSDP_TEST_COMMUNICATOR");
  return name != nullptr && std::string(name) == "shm";
}

std::shared_ptr<Communicator> make_communicator() {
  const RankEnvironment environment = rank_environment();
  return over_shared_memory() ? make_shm_communicator(environment, with_timeout(60s))
                              : make_gloo_communicator(environment, with_timeout(60s));
}

// Rank 1 is stopped while it reads the memory that rank 0 is about to write.
void share_and_stop() {
  const auto comm = make_shm_communicator(rank_environment(), with_timeout(60s));
  const at::Tensor buffer = comm->memory_sharing().buffer(4096 * comm->size(), {}, id("weights"));
  const at::Tensor own = buffer.narrow(0, 4096 * comm->rank(), 4096);
  {
    const auto reading = comm->all_gather(buffer, own, id("weights"));
    reading->wait();
    if (comm->rank() == 1) raise(SIGSTOP);
  }
  dup2(STDOUT_FILENO, STDERR_FILENO);
  comm->memory_sharing().await_readers(buffer, id("weights"));
  say("may write");
}

// Runs a role. The time limits end children whose test hangs.
void be_child(const std::string& role) {
  if (role == "share and stop") return share_and_stop();
  const auto comm = make_communicator();
  gather(*comm, "first", 0, 8);
  say("ready");
  if (role == "idle") std::this_thread::sleep_for(60s);
  if (role == "suicide") {
    auto output = torch::zeros({kLarge * comm->size()});
    auto work = comm->all_gather(output, torch::ones({kLarge}), id("large", 0));
    kill(getpid(), SIGKILL);
  }
  if (role.starts_with("stress ")) {
    testing::Stress stress(*comm, static_cast<unsigned>(std::stoul(role.substr(7))));
    for (;;) stress.round();
  }
  if (role == "small") gather(*comm, "second", 0, 8);
  if (role == "large") gather(*comm, "large", 0, kLarge);
  if (role == "sums") {
    auto tensor = torch::full({1000}, comm->rank() + 1, at::kFloat);
    comm->all_reduce(tensor, tensor, {}, id("sum"))->wait();
    say("sum " + std::to_string(static_cast<int>(tensor.sum().item<float>())));
  }
}

TEST(ChildProcess, DISABLED_Main) {
  const char* role = std::getenv("FSDP_TEST_CHILD");
  ASSERT_NE(role, nullptr) << "for child processes only";
  const auto error = error_of([&] { be_child(role); });
  say(error);
}

TEST(Processes, ReduceOverTcp) {
  const FreePort port;
  std::vector<std::unique_ptr<Child>> children;
  for (int rank = 0; rank < 3; ++rank) children.push_back(std::make_unique<Child>("sums", rank, 3, port.number()));
  for (auto& child : children) EXPECT_THAT(child->finish(), AllOf(HasSubstr("sum 6000"), HasSubstr("no error")));
}

TEST(Processes, KilledWhileIdle) {
  const FreePort port;
  Child survivor("small", 0, 3, port.number());
  Child victim("idle", 1, 3, port.number());
  Child other("small", 2, 3, port.number());
  EXPECT_EQ(victim.read_line(), "ready");
  victim.signal(SIGKILL);
  for (auto* child : {&survivor, &other}) {
    EXPECT_THAT(child->finish(), AllOf(HasSubstr("'second'"), HasSubstr("rank 1 is lost")));
  }
}

// Gloo itself reports no error for a message that is half way through a connection. Data in shared memory remain,
// although the rank that wrote them has ended.
TEST(Processes, KilledInTheMiddleOfATransfer) {
  const FreePort port;
  Child survivor("large", 0, 2, port.number());
  Child victim("suicide", 1, 2, port.number());
  const std::string text = survivor.finish();
  if (over_shared_memory()) {
    EXPECT_THAT(text, HasSubstr("no error"));
  } else {
    EXPECT_THAT(text, AllOf(HasSubstr("'large'"), HasSubstr("rank 1 is lost")));
  }
  EXPECT_TRUE(WIFEXITED(survivor.status()));
}

TEST(Processes, StoppedWhileItReadsASharedBuffer) {
  const FreePort port;
  Child writer("share and stop", 0, 2, port.number());
  Child reader("share and stop", 1, 2, port.number());
  EXPECT_THAT(writer.read_line(),
              HasSubstr("rank 0 waits to write to its part of 'weights' for rank 1, which is stopped"));
  reader.signal(SIGCONT);
  for (Child* child : {&writer, &reader})
    EXPECT_THAT(child->finish(), AllOf(HasSubstr("may write"), HasSubstr("no error")));
}

// Rank 0 also serves the store at which the ranks met.
TEST(Processes, KilledRankZero) {
  const FreePort port;
  Child victim("idle", 0, 2, port.number());
  Child survivor("small", 1, 2, port.number());
  EXPECT_EQ(survivor.read_line(), "ready");
  EXPECT_EQ(victim.read_line(), "ready");
  victim.signal(SIGKILL);
  EXPECT_THAT(survivor.finish(), AllOf(HasSubstr("'second'"), HasSubstr("rank 0 is lost")));
}

// Returns the number of kills, from FSDP_STRESS_KILLS (default 3).
int stress_kills() {
  const char* kills = std::getenv("FSDP_STRESS_KILLS");
  return kills == nullptr ? 3 : std::atoi(kills);
}

// Ranks are stopped and continued without effect. One is killed at any moment, and all others name it.
TEST(Processes, StoppedAndKilledAtRandom) {
  std::mt19937 random(std::random_device{}());
  const auto below = [&](int bound) { return static_cast<int>(random() % static_cast<unsigned>(bound)); };
  for (int kill = 0; kill < stress_kills(); ++kill) {
    constexpr int kRanks = 3;
    const std::string role = "stress " + std::to_string(random());
    const FreePort port;
    std::vector<std::unique_ptr<Child>> children;
    for (int rank = 0; rank < kRanks; ++rank)
      children.push_back(std::make_unique<Child>(role, rank, kRanks, port.number()));
    for (auto& child : children) EXPECT_EQ(child->read_line(), "ready");
    const int stopped = below(kRanks), victim = below(kRanks), delay = below(100);
    children[stopped]->signal(SIGSTOP);
    std::this_thread::sleep_for(std::chrono::milliseconds(delay));
    children[stopped]->signal(SIGCONT);
    std::this_thread::sleep_for(std::chrono::milliseconds(below(100)));
    children[victim]->signal(SIGKILL);
    for (int rank = 0; rank < kRanks; ++rank) {
      const std::string text = children[rank]->finish();
      if (rank != victim) {
        EXPECT_THAT(text, HasSubstr("rank " + std::to_string(victim) + " is lost"))
            << role << ": rank " << rank << ", stopped " << stopped << " for " << delay << " ms";
      }
    }
  }
}

RankEnvironment place(int rank, int size, int port) {
  RankEnvironment environment;
  environment.rank = rank;
  environment.world_size = size;
  environment.master_port = port;
  return environment;
}

TEST(Processes, PortInUse) {
  Listener listener;
  const auto error = error_of([&] { make_gloo_communicator(place(0, 2, listener.port()), with_timeout(5s)); });
  EXPECT_THAT(error, AllOf(HasSubstr("127.0.0.1:" + std::to_string(listener.port())), HasSubstr("in use"),
                           HasSubstr("MASTER_PORT")));
}

TEST(Processes, MasterOutOfReach) {
  const FreePort port;
  const auto error = error_of([&] { make_gloo_communicator(place(1, 2, port.number()), with_timeout(1s)); });
  EXPECT_THAT(error, AllOf(HasSubstr("rank 1 cannot reach"), HasSubstr("127.0.0.1:" + std::to_string(port.number()))));
}

TEST(Processes, UnknownMaster) {
  auto environment = place(1, 2, 29500);
  environment.master_address = "no-such-host.invalid";
  const auto error = error_of([&] { make_gloo_communicator(environment, with_timeout(1s)); });
  EXPECT_THAT(error, HasSubstr("no-such-host.invalid"));
}

// A child claims the rank of a thread of this process; rank 2 never comes.
TEST(Processes, ARankClaimedTwice) {
  const FreePort port;
  std::string errors[2];
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      errors[rank] = error_of([&] { make_gloo_communicator(place(rank, 3, port.number()), with_timeout(3s)); });
    });
  }
  std::this_thread::sleep_for(500ms);
  Child child("small", 1, 3, port.number());
  EXPECT_THAT(child.finish(),
              AllOf(HasSubstr("two processes claim rank 1 of 3"), HasSubstr("process " + std::to_string(getpid()))));
  for (auto& thread : threads) thread.join();
  for (const auto& error : errors) EXPECT_THAT(error, HasSubstr("rank(s) 2 of 3"));
}

TEST(Processes, OneRankNeedsNoNetwork) {
  auto environment = place(0, 1, 1);
  environment.master_address = "no-such-host.invalid";
  const auto comm = make_gloo_communicator(environment);
  auto output = torch::zeros({3}, at::kBFloat16);
  comm->reduce_scatter(output, torch::tensor({1.f, 2.f, 3.f}), {0.5}, id("a"))->wait();
  EXPECT_TRUE(torch::equal(output, torch::tensor({0.5f, 1.f, 1.5f}).to(at::kBFloat16)));
  EXPECT_EQ(comm->backend(), "gloo");
  EXPECT_EQ(comm->bytes_sent(), 0u);
}

}  // namespace
}  // namespace fsdp::comm::processes_test
