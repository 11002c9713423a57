#include "launch/rank_processes.h"

#include <ATen/Parallel.h>
#include <c10/util/StringUtil.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <system_error>

#include "base/end_process.h"

namespace fsdp::trainer {

int threads_of_rank(int ranks) {
  // OpenMP reads a list, for nested regions; the first number is that of the outermost.
  const char* given = std::getenv("OMP_NUM_THREADS");
  const long threads = given ? std::strtol(given, nullptr, 10) : 0;
  if (threads > 0 && threads <= std::numeric_limits<int>::max()) return static_cast<int>(threads);
  cpu_set_t cores;
  const int usable = sched_getaffinity(0, sizeof(cores), &cores) == 0 ? CPU_COUNT(&cores) : 1;
  return std::max(1, usable / ranks);
}

namespace {

void set_variable(const char* name, const std::string& value) { setenv(name, value.c_str(), 1); }

void set_environment(int rank, int ranks, int port) {
  for (const char* name : {"RANK", "LOCAL_RANK"}) set_variable(name, std::to_string(rank));
  for (const char* name : {"WORLD_SIZE", "LOCAL_WORLD_SIZE"}) set_variable(name, std::to_string(ranks));
  set_variable("MASTER_ADDR", "127.0.0.1");
  set_variable("MASTER_PORT", std::to_string(port));
}

// Libraries have read OMP_NUM_THREADS already, so that a number of our own must be set in them, too.
void share_cores(int ranks) {
  if (std::getenv("OMP_NUM_THREADS") != nullptr) return;
  const int threads = threads_of_rank(ranks);
  set_variable("OMP_NUM_THREADS", std::to_string(threads));
  if (std::getenv("MKL_NUM_THREADS") == nullptr) at::set_num_threads(threads);
}

// The whole life of the new process. An error that leaves `rank` ends it, as the stack of its parent is not its own.
[[noreturn]] void be_rank(const std::string& name, Gate& gate, pid_t parent,
                          const std::function<int()>& rank) noexcept {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  prctl(PR_SET_NAME, name.c_str());
  if (getppid() != parent || !gate.pass()) std::_Exit(EXIT_FAILURE);
  base::end_process(rank());
}

void kill_and_reap(std::vector<pid_t>& pids) {
  for (pid_t pid : pids) {
    if (pid != 0) kill(pid, SIGKILL);
  }
  for (pid_t& pid : pids) {
    if (pid != 0) waitpid(pid, nullptr, 0);
    pid = 0;
  }
}

}  // namespace

int RankDeath::status() const {
  return WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
}

std::string RankDeath::describe() const {
  if (!WIFSIGNALED(wait_status)) return c10::str("exited with status ", WEXITSTATUS(wait_status));
  const int signal = WTERMSIG(wait_status);
  return c10::str("was killed by signal ", signal, " (", strsignal(signal), ")");
}

RankProcesses::RankProcesses(const std::function<int()>& rank, int ranks) {
  std::fflush(nullptr);  // each process would write once more what it inherits in buffers
  const pid_t parent = getpid();
  for (int i = 0; i < ranks; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      be_rank("fsdp:rank" + std::to_string(i), gate_, parent, [&] {
        set_environment(i, ranks, port_.number());
        share_cores(ranks);
        return rank();
      });
    }
    if (child < 0) {
      const int error = errno;
      kill_and_reap(pids_);
      throw std::system_error(error, std::generic_category(), "cannot start a rank");
    }
    pids_.push_back(child);
  }
}

RankProcesses::~RankProcesses() { kill_and_reap(pids_); }

void RankProcesses::start() { gate_.open(static_cast<int>(pids_.size())); }

int RankProcesses::alive() const {
  return static_cast<int>(std::count_if(pids_.begin(), pids_.end(), [](pid_t pid) { return pid != 0; }));
}

void RankProcesses::signal_all(int signal) const {
  for (pid_t pid : pids_) {
    if (pid != 0) kill(pid, signal);
  }
}

std::vector<RankDeath> RankProcesses::reap() {
  std::vector<RankDeath> deaths;
  for (size_t rank = 0; rank < pids_.size(); ++rank) {
    int wait_status = 0;
    if (pids_[rank] == 0 || waitpid(pids_[rank], &wait_status, WNOHANG) <= 0) continue;
    deaths.push_back({static_cast<int>(rank), wait_status});
    pids_[rank] = 0;
  }
  std::stable_partition(deaths.begin(), deaths.end(), [](const RankDeath& d) { return WIFSIGNALED(d.wait_status); });
  return deaths;
}

}  // namespace fsdp::trainer
