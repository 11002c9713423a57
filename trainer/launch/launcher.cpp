#include "launch/launcher.h"

#include <c10/util/StringUtil.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <utility>

#include "base/env.h"
#include "comm/meeting/slurm_environment.h"
#include "config/errors.h"
#include "launch/signal_queue.h"

namespace fsdp::trainer {

namespace {

using Clock = std::chrono::steady_clock;

// Returns how many processes the system has killed since it started because it was out of memory, or nothing if the
// system does not tell.
std::optional<int64_t> kills_for_memory() {
  std::ifstream counters("/proc/vmstat");
  std::string name;
  for (int64_t value = 0; counters >> name >> value;) {
    if (name == "oom_kill") return value;
  }
  return std::nullopt;
}

// Supervises the ranks until the last one has ended.
class Supervisor {
 public:
  Supervisor(const LaunchRequest& request, SignalQueue& signals, RankProcesses& processes)
      : request_(request), signals_(signals), processes_(processes) {}

  int run();

 private:
  void handle(int signal);
  int signal_for_ranks(int signal);
  void note_deaths();
  void end_the_others();
  // Returns the likely cause of a death for its message, or an empty string if nothing is known.
  std::string likely_cause(const RankDeath& death) const;
  std::chrono::milliseconds time_to_next_deadline() const;

  const LaunchRequest& request_;
  SignalQueue& signals_;
  RankProcesses& processes_;
  const std::optional<int64_t> memory_kills_before_ = kills_for_memory();
  int status_ = 0;
  bool terminated_ = false;
  int interrupts_ = 0;
  std::optional<Clock::time_point> terminate_at_;
  std::optional<Clock::time_point> kill_at_;
};

int Supervisor::run() {
  while (processes_.alive() > 0) {
    if (const int signal = signals_.wait(time_to_next_deadline())) handle(signal);
    note_deaths();
    end_the_others();
  }
  return status_;
}

void Supervisor::handle(int signal) {
  if (signal == SIGCHLD) return;
  std::fprintf(stderr, "fsdp: %s: ending %d rank(s)\n", strsignal(signal), processes_.alive());
  processes_.signal_all(signal_for_ranks(signal));
  if (status_ == 0) status_ = 128 + signal;
  if (!kill_at_) kill_at_ = Clock::now() + request_.grace_to_leave;
  terminated_ = true;
}

// A terminal sends SIGINT to the ranks as well, and a second SIGINT would end them. The first one is therefore passed
// on as SIGTERM.
int Supervisor::signal_for_ranks(int signal) {
  if (signal != SIGINT) return signal;
  return interrupts_++ == 0 ? SIGTERM : SIGKILL;
}

void Supervisor::note_deaths() {
  for (const RankDeath& death : processes_.reap()) {
    if (death.status() == 0 || status_ != 0) continue;
    status_ = death.status();
    std::fprintf(stderr, "fsdp: rank %d %s%s%s\n", death.rank, death.describe().c_str(), likely_cause(death).c_str(),
                 processes_.alive() > 0 ? "; ending the other ranks" : "");
    terminate_at_ = Clock::now() + request_.grace_to_end;
  }
}

std::string Supervisor::likely_cause(const RankDeath& death) const {
  if (death.status() != 128 + SIGKILL) return {};
  const char* remedy = "use a smaller batch or model, activation_checkpointing, more hosts or offload_path";
  const auto kills = kills_for_memory();
  if (kills && memory_kills_before_ && *kills > *memory_kills_before_) {
    return std::string(": the system has killed processes during this run because memory ran out; ") + remedy;
  }
  return std::string(": unless someone sent that signal, memory ran out; ") + remedy;
}

void Supervisor::end_the_others() {
  const auto now = Clock::now();
  if (terminate_at_ && !terminated_ && now >= *terminate_at_) {
    processes_.signal_all(SIGTERM);
    terminated_ = true;
    kill_at_ = now + request_.grace_to_kill;
  }
  if (kill_at_ && now >= *kill_at_) {
    processes_.signal_all(SIGKILL);
    kill_at_ = now + request_.grace_to_kill;
  }
}

// Returns at most kLook: if the process has other threads, one of them may take the SIGCHLD.
std::chrono::milliseconds Supervisor::time_to_next_deadline() const {
  constexpr std::chrono::milliseconds kNone(0), kLook(500);
  const auto& next = kill_at_ ? kill_at_ : terminate_at_;
  if (!next) return kLook;
  return std::clamp(std::chrono::ceil<std::chrono::milliseconds>(*next - Clock::now()), kNone, kLook);
}

}  // namespace

Launcher::Launcher(LaunchRequest request) : request_(std::move(request)), processes_(request_.rank, request_.ranks) {}

int Launcher::run() {
  SignalQueue signals({SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2});
  processes_.start();
  return Supervisor(request_, signals, processes_).run();
}

std::optional<std::string> rank_variable_present() {
  const std::optional<comm::SlurmPlace> slurm = comm::slurm_place();
  if (slurm && slurm->size > 1) return "SLURM_PROCID";
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_RANK",
                           "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "PALS_RANKID",
                           "FLUX_TASK_RANK", "PMI_RANK", "PMI_SIZE", "PMIX_RANK"}) {
    std::string text = name;
    const bool may_be_of_slurm = slurm && text.starts_with("PMI");  // set for a step of one task
    if (base::env_string(text) && !may_be_of_slurm) return text;
  }
  return std::nullopt;
}

void check_is_no_rank(const std::string& option) {
  const auto variable = rank_variable_present();
  if (!variable) return;
  throw ConfigError(c10::str(option, " starts ranks, but this process is a rank already: the environment has ",
                             *variable, "; unset it, or leave out ", option));
}

}  // namespace fsdp::trainer
