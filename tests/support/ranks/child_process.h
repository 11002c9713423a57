// Ranks as separate processes: a child process runs one disabled test of the test program, which reads its role from
// FSDP_TEST_CHILD.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <stdexcept>
#include <string>
#include <utility>

namespace fsdp::testing {

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

// Connections that nobody accepts: as long as this object lives, the listener's host ignores further ones.
class FullQueue {
 public:
  explicit FullQueue(const Listener& listener) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<uint16_t>(listener.port()));
    for (int& fd : fds_) {
      fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
      connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address));
    }
  }
  ~FullQueue() {
    for (int fd : fds_) close(fd);
  }
  FullQueue(const FullQueue&) = delete;
  FullQueue& operator=(const FullQueue&) = delete;

 private:
  int fds_[4] = {};  // more than the queue of a Listener holds
};

// A process of this program that plays a given role and whose output can be read.
class Child {
 public:
  // `main`: the disabled test that the process runs.
  Child(const std::string& role, int rank, int size, int port, const char* main = "ChildProcess.DISABLED_Main") {
    int ends[2];
    if (pipe(ends) != 0) throw std::runtime_error("no pipe");
    pid_ = fork();
    if (pid_ == 0) {
      dup2(ends[1], STDOUT_FILENO);
      close(ends[0]);
      close(ends[1]);
      run(role, rank, size, port, main);
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
  // Whether the process has a handler for a signal.
  bool catches(int number) const {
    std::ifstream status("/proc/" + std::to_string(pid_) + "/status");
    for (std::string line; std::getline(status, line);) {
      if (line.starts_with("SigCgt:")) return std::stoull(line.substr(7), nullptr, 16) >> (number - 1) & 1;
    }
    return false;
  }

  // Waits until the process has ended and returns its output.
  std::string finish() {
    std::string text;
    char buffer[4096];
    for (ssize_t n = 0; (n = read(output_, buffer, sizeof(buffer))) > 0;) text.append(buffer, static_cast<size_t>(n));
    waitpid(std::exchange(pid_, 0), &status_, 0);
    return text;
  }
  int status() const { return status_; }

  // Blocks until the process has written one line; returns the line.
  std::string read_line() {
    std::string line;
    for (char c = 0; read(output_, &c, 1) == 1 && c != '\n';) line += c;
    return line;
  }

 private:
  // Runs between fork and exec in a process with threads: glibc keeps malloc usable there, and no other thread of these
  // tests changes the environment.
  [[noreturn]] static void run(const std::string& role, int rank, int size, int port, const char* main) {
    setenv("FSDP_TEST_CHILD", role.c_str(), 1);
    setenv("RANK", std::to_string(rank).c_str(), 1);
    setenv("WORLD_SIZE", std::to_string(size).c_str(), 1);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    setenv("MASTER_PORT", std::to_string(port).c_str(), 1);
    const std::string filter = std::string("--gtest_filter=") + main;
    execl("/proc/self/exe", "comm_test", filter.c_str(), "--gtest_also_run_disabled_tests", "--gtest_brief=1", nullptr);
    _exit(127);
  }

  pid_t pid_ = 0;
  int output_ = -1;
  int status_ = 0;
};

inline void say(const std::string& line) {
  const auto text = line + "\n";
  if (write(STDOUT_FILENO, text.data(), text.size()) < 0) _exit(1);
}

}  // namespace fsdp::testing
