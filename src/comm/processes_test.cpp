// Ranks as processes that meet over TCP: ends by SIGKILL, ports in use, ranks claimed twice, masters out of
// reach. A child process is this test program again, told by FSDP_TEST_CHILD what to do.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <thread>

#include "fsdp/communicator.h"

namespace fsdp {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using namespace std::chrono_literals;

// Elements of a transfer that is not over when the next statement kills the process.
constexpr int64_t kLarge = int64_t{1} << 25;

CollectiveId id(const std::string& name, uint64_t generation = 0) { return {name, generation, Pass::kForward}; }

void gather(Communicator& comm, const std::string& name, uint64_t generation, int64_t numel) {
  comm.all_gather(torch::zeros({numel * comm.size()}), torch::ones({numel}), id(name, generation))->wait();
}

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "no error";
}

// A listening socket on a port that the system chose.
class Listener {
 public:
  Listener() : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_ANY);
    socklen_t length = sizeof(address);
    bind(fd_, reinterpret_cast<sockaddr*>(&address), length);
    listen(fd_, 1);
    getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &length);
    port_ = ntohs(address.sin_port);
  }
  ~Listener() { close(fd_); }
  int port() const { return port_; }

 private:
  int fd_;
  int port_ = 0;
};

int free_port() { return Listener().port(); }

// A process of this program that does what its role says and whose output can be read.
class Child {
 public:
  Child(const std::string& role, int rank, int size, int port) {
    int ends[2];
    if (pipe(ends) != 0) throw std::runtime_error("no pipe");
    pid_ = fork();
    if (pid_ == 0) {
      dup2(ends[1], STDOUT_FILENO);
      close(ends[0]);
      close(ends[1]);
      run(role, rank, size, port);
    }
    close(ends[1]);
    output_ = ends[0];
  }
  ~Child() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    close(output_);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  void signal(int number) { kill(pid_, number); }

  // What it wrote, once it has ended.
  std::string finish() {
    std::string text;
    char buffer[4096];
    for (ssize_t n = 0; (n = read(output_, buffer, sizeof(buffer))) > 0;) text.append(buffer, static_cast<size_t>(n));
    waitpid(std::exchange(pid_, 0), &status_, 0);
    return text;
  }
  int status() const { return status_; }

  // Blocks until it has written one line.
  std::string read_line() {
    std::string line;
    for (char c = 0; read(output_, &c, 1) == 1 && c != '\n';) line += c;
    return line;
  }

 private:
  // Between fork and exec only what is safe in a process with threads.
  [[noreturn]] static void run(const std::string& role, int rank, int size, int port) {
    setenv("FSDP_TEST_CHILD", role.c_str(), 1);
    setenv("RANK", std::to_string(rank).c_str(), 1);
    setenv("WORLD_SIZE", std::to_string(size).c_str(), 1);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    setenv("MASTER_PORT", std::to_string(port).c_str(), 1);
    execl("/proc/self/exe", "comm_test", "--gtest_filter=ChildProcess.DISABLED_Main", "--gtest_also_run_disabled_tests",
          "--gtest_brief=1", nullptr);
    _exit(127);
  }

  pid_t pid_ = 0;
  int output_ = -1;
  int status_ = 0;
};

void say(const std::string& line) {
  const auto text = line + "\n";
  if (write(STDOUT_FILENO, text.data(), text.size()) < 0) _exit(1);
}

GlooOptions with_timeout(std::chrono::milliseconds timeout) {
  GlooOptions options;
  options.timeout = timeout;
  return options;
}

// What each role does. The time limits end children whose test hangs.
void be_child(const std::string& role) {
  const auto comm = make_gloo_communicator(rank_environment(), with_timeout(60s));
  gather(*comm, "first", 0, 8);
  say("ready");
  if (role == "idle") std::this_thread::sleep_for(60s);
  if (role == "suicide") {
    auto output = torch::zeros({kLarge * comm->size()});
    auto work = comm->all_gather(output, torch::ones({kLarge}), id("large", 0));
    kill(getpid(), SIGKILL);
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
  const int port = free_port();
  std::vector<std::unique_ptr<Child>> children;
  for (int rank = 0; rank < 3; ++rank) children.push_back(std::make_unique<Child>("sums", rank, 3, port));
  for (auto& child : children) EXPECT_THAT(child->finish(), AllOf(HasSubstr("sum 6000"), HasSubstr("no error")));
}

TEST(Processes, KilledWhileIdle) {
  const int port = free_port();
  Child survivor("small", 0, 3, port);
  Child victim("idle", 1, 3, port);
  Child other("small", 2, 3, port);
  EXPECT_EQ(victim.read_line(), "ready");
  victim.signal(SIGKILL);
  for (auto* child : {&survivor, &other}) {
    EXPECT_THAT(child->finish(), AllOf(HasSubstr("'second'"), HasSubstr("rank 1 is lost")));
  }
}

// Messages half way through a connection get no error from Gloo itself.
TEST(Processes, KilledInTheMiddleOfATransfer) {
  const int port = free_port();
  Child survivor("large", 0, 2, port);
  Child victim("suicide", 1, 2, port);
  EXPECT_THAT(survivor.finish(), AllOf(HasSubstr("'large'"), HasSubstr("rank 1 is lost")));
  EXPECT_TRUE(WIFEXITED(survivor.status()));
}

// Rank 0 also serves the store at which the ranks met.
TEST(Processes, KilledRankZero) {
  const int port = free_port();
  Child victim("idle", 0, 2, port);
  Child survivor("small", 1, 2, port);
  EXPECT_EQ(survivor.read_line(), "ready");
  EXPECT_EQ(victim.read_line(), "ready");
  victim.signal(SIGKILL);
  EXPECT_THAT(survivor.finish(), AllOf(HasSubstr("'second'"), HasSubstr("rank 0 is lost")));
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
  const int port = free_port();
  const auto error = error_of([&] { make_gloo_communicator(place(1, 2, port), with_timeout(1s)); });
  EXPECT_THAT(error, AllOf(HasSubstr("rank 1 cannot reach"), HasSubstr("127.0.0.1:" + std::to_string(port))));
}

TEST(Processes, UnknownMaster) {
  auto environment = place(1, 2, 29500);
  environment.master_address = "no-such-host.invalid";
  const auto error = error_of([&] { make_gloo_communicator(environment, with_timeout(1s)); });
  EXPECT_THAT(error, HasSubstr("no-such-host.invalid"));
}

// A child claims the rank of a thread of this process; rank 2 never comes.
TEST(Processes, ARankClaimedTwice) {
  const int port = free_port();
  std::string errors[2];
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      errors[rank] = error_of([&] { make_gloo_communicator(place(rank, 3, port), with_timeout(3s)); });
    });
  }
  std::this_thread::sleep_for(500ms);
  Child child("small", 1, 3, port);
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
}  // namespace fsdp
