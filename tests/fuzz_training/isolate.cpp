#include "fuzz_training/isolate.h"

#include <ATen/Parallel.h>
#include <c10/core/DefaultDtype.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <list>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "support/files/temporary_folder.h"

namespace fsdp::fuzz {
namespace {

using Clock = std::chrono::steady_clock;

// Drops the output of a child on stdout and stderr: a communicator's watchdog may write there.
void silence() {
  const int null = open("/dev/null", O_WRONLY);
  dup2(null, STDOUT_FILENO);
  dup2(null, STDERR_FILENO);
}

[[noreturn]] void run_child(const Case& training, std::chrono::seconds limit, const std::string& folder, int output) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  setenv("TMPDIR", folder.c_str(), /*overwrite=*/1);
  silence();
  at::set_num_threads(1);
  c10::set_default_dtype(caffe2::TypeMeta::Make<double>());
  const Verdict verdict = run_case(training, limit / 6);
  const std::string text = nlohmann::json{verdict.passed, verdict.way, verdict.text}.dump(
      -1, ' ', false, nlohmann::json::error_handler_t::replace);
  const bool written = ::write(output, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  _exit(written ? 0 : 1);
}

// A child process that runs one case.
class Child {
 public:
  Child(const Case& training, std::chrono::seconds limit) : begun_(Clock::now()), limit_(limit) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("fuzz_training: no pipe");
    pid_ = fork();
    if (pid_ < 0) throw std::runtime_error("fuzz_training: no process");
    if (pid_ == 0) run_child(training, limit, folder_.path(), ends[1]);
    close(ends[1]);
    output_ = ends[0];
  }
  ~Child() {
    hangs_ = true;
    if (pid_ > 0) end();
    close(output_);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  int output() const { return output_; }

  // Reads available output. Returns whether the child has ended, by itself or because its time is over.
  bool advance(bool readable) {
    char buffer[4096];
    if (readable) {
      const ssize_t count = ::read(output_, buffer, sizeof(buffer));
      if (count <= 0) return true;
      text_.append(buffer, count);
    }
    hangs_ = Clock::now() - begun_ > limit_;
    return hangs_;
  }

  Verdict finish() {
    const int status = end();
    if (hangs_) return {false, "hang", "the case did not end in time"};
    if (WIFSIGNALED(status)) {
      const std::string signal = strsignal(WTERMSIG(status));
      return {false, "crash: " + signal, "the process ended with signal " + signal};
    }
    const auto verdict = nlohmann::json::parse(text_, nullptr, /*allow_exceptions=*/false);
    if (!verdict.is_array()) return {false, "crash", "the process ended with status " + std::to_string(status)};
    return {verdict[0], verdict[1], verdict[2]};
  }

 private:
  int end() {
    if (hangs_) kill(pid_, SIGKILL);
    int status = 0;
    waitpid(std::exchange(pid_, 0), &status, 0);
    return status;
  }

  testing::TemporaryFolder folder_;  // for files that remain when a child is killed
  pid_t pid_ = 0;
  int output_ = -1;
  Clock::time_point begun_;
  std::chrono::seconds limit_;
  bool hangs_ = false;
  std::string text_;
};

struct Running {
  Job job;
  Child child;
  Running(const Job& job, std::chrono::seconds limit) : job(job), child(job.training, limit) {}
};

// Waits until a child's output can be read or a moment has passed. Reports and removes the children that have ended.
void wait_for_some(std::list<Running>& running, const Report& report) {
  std::vector<pollfd> files;
  for (const Running& one : running) files.push_back({one.child.output(), POLLIN, 0});
  poll(files.data(), files.size(), /*timeout_ms=*/200);
  size_t index = 0;
  for (auto one = running.begin(); one != running.end();) {
    const bool readable = files[index++].revents != 0;
    if (!one->child.advance(readable)) {
      ++one;
      continue;
    }
    report(one->job, one->child.finish());
    one = running.erase(one);
  }
}

}  // namespace

void run_jobs(int processes, std::chrono::seconds limit, const NextJob& next, const Report& report) {
  std::list<Running> running;
  bool more = true;
  while (more || !running.empty()) {
    Job job;
    while (more && static_cast<int>(running.size()) < processes) {
      more = next(job);
      if (more) running.emplace_back(job, limit);
    }
    if (!running.empty()) wait_for_some(running, report);
  }
}

Verdict run_isolated(const Case& training, std::chrono::seconds limit) {
  Verdict result;
  bool given = false;
  const NextJob next = [&](Job& job) {
    job.training = training;
    return !std::exchange(given, true);
  };
  run_jobs(1, limit, next, [&](const Job&, const Verdict& verdict) { result = verdict; });
  return result;
}

}  // namespace fsdp::fuzz
