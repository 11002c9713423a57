#include "launch/rank_processes.h"

#include <c10/util/StringUtil.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <map>
#include <stdexcept>
#include <system_error>

namespace fsdp::trainer {

int threads_of_rank(int ranks) {
  if (const char* given = std::getenv("OMP_NUM_THREADS"); given != nullptr && std::atoi(given) > 0) {
    return std::atoi(given);
  }
  cpu_set_t cores;
  const int usable = sched_getaffinity(0, sizeof(cores), &cores) == 0 ? CPU_COUNT(&cores) : 1;
  return std::max(1, usable / ranks);
}

namespace {

std::vector<std::string> environment_of(int rank, int ranks, int port) {
  std::map<std::string, std::string> own = {
      {"RANK", std::to_string(rank)},       {"WORLD_SIZE", std::to_string(ranks)},
      {"LOCAL_RANK", std::to_string(rank)}, {"LOCAL_WORLD_SIZE", std::to_string(ranks)},
      {"MASTER_ADDR", "127.0.0.1"},         {"MASTER_PORT", std::to_string(port)},
  };
  if (std::getenv("OMP_NUM_THREADS") == nullptr) {
    own["OMP_NUM_THREADS"] = std::to_string(threads_of_rank(ranks));
  }
  std::vector<std::string> variables;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string text = *variable;
    if (!own.count(text.substr(0, text.find('=')))) variables.push_back(text);
  }
  for (const auto& [name, value] : own) variables.push_back(name + "=" + value);
  return variables;
}

std::vector<char*> pointers_to(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (std::string& string : strings) pointers.push_back(string.data());
  pointers.push_back(nullptr);
  return pointers;
}

// Runs in the new process; only uses calls that are safe between fork and exec.
[[noreturn]] void become(const char* program, char* const* arguments, char* const* environment, pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(EXIT_FAILURE);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  execve(program, arguments, environment);
  constexpr char kMessage[] = "fsdp: cannot start a rank: exec failed\n";
  [[maybe_unused]] const auto written = write(STDERR_FILENO, kMessage, sizeof(kMessage) - 1);
  _exit(127);
}

pid_t start(const std::string& program, std::vector<std::string> arguments, std::vector<std::string> environment) {
  arguments.insert(arguments.begin(), "fsdp");
  const std::vector<char*> argument_pointers = pointers_to(arguments);
  const std::vector<char*> environment_pointers = pointers_to(environment);
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child == 0) become(program.c_str(), argument_pointers.data(), environment_pointers.data(), parent);
  if (child < 0) throw std::system_error(errno, std::generic_category(), "cannot start a rank");
  return child;
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

RankProcesses::RankProcesses(const std::string& program, const std::vector<std::string>& arguments, int ranks) {
  try {
    for (int rank = 0; rank < ranks; ++rank)
      pids_.push_back(start(program, arguments, environment_of(rank, ranks, port_.number())));
  } catch (...) {
    kill_and_reap(pids_);
    throw;
  }
}

RankProcesses::~RankProcesses() { kill_and_reap(pids_); }

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
