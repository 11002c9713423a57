// Tests the launcher, mostly with shell scripts as ranks.
#include "launch/launcher.h"

#include <ATen/Parallel.h>
#include <c10/util/StringUtil.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>

#include "comm/meeting/free_port.h"
#include "support/files/temporary_folder.h"

namespace fsdp::trainer::launcher_test {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

int run_ranks(const LaunchRequest& request) { return Launcher(request).run(); }

class LauncherTest : public ::testing::Test {
 protected:
  static LaunchRequest shell(const std::string& script, int ranks) {
    return {.rank = [script] { return execl("/bin/sh", "sh", "-c", script.c_str(), nullptr); },
            .ranks = ranks,
            .grace_to_end = milliseconds(100),
            .grace_to_kill = milliseconds(200)};
  }
  struct Outcome {
    int status = -1;
    std::string messages;
  };
  static Outcome launch(const LaunchRequest& request) {
    ::testing::internal::CaptureStderr();
    const int status = run_ranks(request);
    return {status, ::testing::internal::GetCapturedStderr()};
  }
  std::string read(const std::string& name) const { return folder_.read(name); }
  // Waits until the file has content.
  void await(const std::string& name) const {
    while (read(name).empty()) std::this_thread::sleep_for(milliseconds(5));
  }

  testing::TemporaryFolder folder_;
};

TEST_F(LauncherTest, GivesEachRankItsEnvironment) {
  const std::string script = "echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $MASTER_ADDR > " + folder_.path("") +
                             "env$RANK; test $MASTER_PORT -gt 0 && test $OMP_NUM_THREADS -ge 1";
  EXPECT_EQ(run_ranks(shell(script, 3)), 0);
  for (int rank = 0; rank < 3; ++rank) {
    const std::string r = std::to_string(rank);
    EXPECT_EQ(read("env" + r), c10::str(rank, " 3 ", rank, " 3 127.0.0.1\n"));
  }
}

// Each process that looks for a port finds another one, and a server can still listen on it.
TEST(FreePorts, AreKeptForTheServer) {
  const comm::FreePort port;
  for (int i = 0; i < 200; ++i) EXPECT_NE(comm::FreePort().number(), port.number());
  const int server = socket(AF_INET, SOCK_STREAM, 0);
  const int yes = 1;
  setsockopt(server, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port.number()));
  EXPECT_EQ(bind(server, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  EXPECT_EQ(listen(server, 1), 0);
  close(server);
}

TEST_F(LauncherTest, KeepsTheUsersNumberOfThreads) {
  setenv("OMP_NUM_THREADS", "77", 1);
  EXPECT_EQ(run_ranks(shell("test $OMP_NUM_THREADS = 77", 1)), 0);
  unsetenv("OMP_NUM_THREADS");
}

TEST_F(LauncherTest, NamesTheRankThatFailsAndEndsTheOthers) {
  const Outcome outcome = launch(shell("test $RANK = 1 && exit 3; exec sleep 1000", 3));
  EXPECT_EQ(outcome.status, 3);
  EXPECT_THAT(outcome.messages, HasSubstr("rank 1 exited with status 3"));
}

TEST_F(LauncherTest, NamesTheSignalThatKilledARank) {
  const Outcome outcome = launch(shell("test $RANK = 0 && kill -9 $$; exec sleep 1000", 2));
  EXPECT_EQ(outcome.status, 128 + SIGKILL);
  EXPECT_THAT(outcome.messages,
              AllOf(HasSubstr("rank 0 was killed by signal 9 (Killed): "), HasSubstr("memory ran out")));
  EXPECT_THAT(launch(shell("test $RANK = 0 && kill -6 $$; exec sleep 1000", 2)).messages, Not(HasSubstr("memory")));
}

TEST_F(LauncherTest, KillsRanksThatIgnoreSigterm) {
  EXPECT_EQ(launch(shell("test $RANK = 1 && exit 5; trap '' TERM; while :; do sleep 0.01; done", 2)).status, 5);
}

TEST_F(LauncherTest, LetsRanksEndByThemselvesFirst) {
  LaunchRequest request = shell("test $RANK = 1 && exit 5; sleep 0.2; echo done > " + folder_.path("log"), 2);
  request.grace_to_end = std::chrono::seconds(20);
  EXPECT_EQ(launch(request).status, 5);
  EXPECT_EQ(read("log"), "done\n");
}

TEST_F(LauncherTest, ReturnsTheStatusOfARank) {
  const Outcome outcome = launch({.rank = [] { return 9; }, .ranks = 2});
  EXPECT_EQ(outcome.status, 9);
  EXPECT_THAT(outcome.messages, HasSubstr("exited with status 9"));
}

TEST_F(LauncherTest, RanksDoNothingUntilTheyMayRun) {
  const LaunchRequest request = shell("echo ran > " + folder_.path("ran"), 2);
  {
    const Launcher launcher(request);
  }
  EXPECT_FALSE(std::filesystem::exists(folder_.path("ran")));
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1) << "a process is left";
}

TEST_F(LauncherTest, RanksShareTheCoresForOperators) {
  unsetenv("OMP_NUM_THREADS");
  const LaunchRequest request{.rank = [] { return at::get_num_threads(); }, .ranks = 1};
  EXPECT_EQ(run_ranks(request), threads_of_rank(1));
}

TEST_F(LauncherTest, PassesSignalsOn) {
  const std::string script = "trap 'echo got > " + folder_.path("got") + "$RANK; exit 0' TERM; echo up > " +
                             folder_.path("up") + "$RANK; while :; do sleep 0.01; done";
  const pid_t launcher = fork();
  if (launcher == 0) {
    LaunchRequest request = shell(script, 2);
    _exit(run_ranks(request));
  }
  await("up0");
  await("up1");
  kill(launcher, SIGTERM);
  int status = 0;
  waitpid(launcher, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 128 + SIGTERM);
  EXPECT_EQ(read("got0") + read("got1"), "got\ngot\n");
}

// The first SIGINT is passed on as SIGTERM, because ranks of a terminal have already received SIGINT; a second one
// kills the ranks at once.
TEST_F(LauncherTest, ASecondInterruptEndsAtOnce) {
  const std::string script = "trap 'echo got > " + folder_.path("got") + "' TERM; trap '' INT; echo up > " +
                             folder_.path("up") + "; while :; do sleep 0.01; done";
  const pid_t launcher = fork();
  if (launcher == 0) _exit(run_ranks(shell(script, 1)));
  await("up");
  kill(launcher, SIGINT);
  await("got");
  kill(launcher, SIGINT);
  int status = 0;
  waitpid(launcher, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 128 + SIGINT);
}

TEST_F(LauncherTest, LeavesSignalsAloneThatAreIgnored) {
  const pid_t launcher = fork();
  if (launcher == 0) {
    std::signal(SIGHUP, SIG_IGN);
    _exit(run_ranks(shell("kill -HUP $PPID; sleep 0.2; exit 7", 1)));
  }
  int status = 0;
  waitpid(launcher, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 7);
}

TEST_F(LauncherTest, RanksDieWithTheirParent) {
  const std::string script = "echo $$ > " + folder_.path("pid.tmp") + "; mv " + folder_.path("pid.tmp") + " " +
                             folder_.path("pid") + "; exec sleep 1000";
  const pid_t launcher = fork();
  if (launcher == 0) _exit(run_ranks(shell(script, 1)));
  await("pid");
  const pid_t rank = std::stoi(read("pid"));
  kill(launcher, SIGKILL);
  waitpid(launcher, nullptr, 0);
  // The orphan is dead, or a zombie that has not been reaped yet.
  const auto alive = [rank] {
    std::ifstream stat("/proc/" + std::to_string(rank) + "/stat");
    std::string id, name, state;
    return (stat >> id >> name >> state) && state != "Z";
  };
  for (int tries = 0; alive() && tries < 1000; ++tries) std::this_thread::sleep_for(milliseconds(10));
  EXPECT_FALSE(alive());
}

TEST_F(LauncherTest, SeesTheVariablesOfOtherLaunchers) {
  EXPECT_EQ(rank_variable_present(), std::nullopt);
  setenv("OMPI_COMM_WORLD_RANK", "0", 1);
  EXPECT_EQ(rank_variable_present(), "OMPI_COMM_WORLD_RANK");
  unsetenv("OMPI_COMM_WORLD_RANK");
}

// A single task of srun may start ranks; if a step had several tasks, each of them would start as many.
TEST_F(LauncherTest, SeesAStepOfSlurmWithSeveralTasks) {
  const std::vector<const char*> names = {"SLURM_STEP_ID", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_NUM_NODES"};
  for (const char* name : names) setenv(name, name == names.back() ? "1" : "0", 1);
  setenv("SLURM_STEP_NUM_TASKS", "1", 1);
  setenv("PMI_RANK", "0", 1);
  EXPECT_EQ(rank_variable_present(), std::nullopt);
  setenv("SLURM_STEP_NUM_TASKS", "2", 1);
  EXPECT_EQ(rank_variable_present(), "SLURM_PROCID");
  for (const char* name : names) unsetenv(name);
  unsetenv("SLURM_STEP_NUM_TASKS");
  unsetenv("PMI_RANK");
}

}  // namespace
}  // namespace fsdp::trainer::launcher_test
