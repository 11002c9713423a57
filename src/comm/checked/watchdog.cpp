#include "comm/checked/watchdog.h"

#include <c10/util/StringUtil.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <optional>
#include <utility>

#include "comm/checked/status_board.h"
#include "comm/error_text.h"

namespace fsdp::comm {
namespace {

using Clock = FlightRecord::Clock;
using Statuses = std::vector<std::optional<RankStatus>>;

constexpr auto kLongestPeriod = std::chrono::milliseconds(2000);
constexpr auto kShortestPeriod = std::chrono::milliseconds(5);

std::chrono::milliseconds period_for(std::chrono::milliseconds warning) {
  return std::clamp(warning / 8, kShortestPeriod, kLongestPeriod);
}

// Describes what keeps `rank` from doing its part of the collective; empty if nothing does.
std::string trouble_of(int rank, const std::optional<RankStatus>& status, const CollectiveEntry& entry) {
  if (!status) return c10::str("rank ", rank, " does not answer: did it end, or is it stopped or cut off?");
  if (entry.identity.kind == CollectiveKind::kMessage && status->issued <= entry.number) {
    const bool sends = rank == entry.identity.root;
    return c10::str("rank ", rank, " has not ", sends ? "sent" : "received", " it (last ",
                    sends ? "sent: " : "received: ", status->last.empty() ? "none" : status->last.back().description,
                    "); it does: ", status->doing);
  }
  if (status->issued <= entry.number) return c10::str("rank ", rank, " is late; its last collective: ", status->doing);
  const RankStatus::Issued* other = status->find(entry.number);
  if (other && other->identity_hash != entry.identity.hash() && entry.identity.kind != CollectiveKind::kGatherBytes) {
    return c10::str("rank ", rank, " has issued another collective in its place: ", other->description,
                    "; its last collective: ", status->doing);
  }
  return {};
}

}  // namespace

// One group, as the thread sees it.
class Watchdog::Guard {
 public:
  Guard(const Watchdog& watchdog, GroupOptions options)
      : watchdog_(watchdog), record_(*watchdog.record_), options_(std::move(options)) {
    if (options_.point) {
      board_.emplace(options_.point, options_.rank, static_cast<int>(options_.names.size()));
    } else {
      silence_ = "the state of the other ranks is unknown, since the communicator has no meeting point";
    }
  }

  void look() {
    try {
      answer_requests();
      look_at_own_waiting();
    } catch (const std::exception& error) {  // the store is lost: rank 0 may have ended
      board_.reset();
      silence_ = c10::str("the state of the other ranks is unknown, since the store cannot be reached (",
                          first_line(error), ")");
    }
  }

 private:
  // A wait that has taken too long.
  struct Overdue {
    uint64_t number = 0;
    int64_t request = 0;
    Clock::time_point asked;
    bool settled = false;  // reported, or left to another rank
    bool said = false;
  };

  void answer_requests() {
    if (!board_ || Clock::now() - record_.last_change(options_.group) < options_.warning / 4) return;
    if (const int64_t request = board_->asked(); request > answered_) answer(request);
  }

  void answer(int64_t request) {
    board_->answer(request, status_of(record_, options_.group));
    answered_ = request;
  }

  void look_at_own_waiting() {
    const std::optional<CollectiveEntry> waiting = record_.longest_waiting(options_.group);
    if (overdue_ && (!waiting || waiting->number != overdue_->number)) say_how_it_ended();
    if (!waiting) return;
    const Clock::time_point now = Clock::now();
    if (!overdue_ && now - waiting->waited > options_.warning) open_case(*waiting, now);
    if (overdue_ && !overdue_->settled) settle(*waiting, now);
  }

  void open_case(const CollectiveEntry& waiting, Clock::time_point now) {
    overdue_ = Overdue{waiting.number, 0, now};
    if (board_) {
      overdue_->request = board_->ask();
      answer(overdue_->request);
    }
  }

  // Reports which rank is late, once all have answered or had time to.
  void settle(const CollectiveEntry& waiting, Clock::time_point now) {
    if (!board_) {
      speak(waiting, silence_);
      return;
    }
    const Statuses statuses = board_->answers_to(overdue_->request);
    const bool complete = std::all_of(statuses.begin(), statuses.end(), [](const auto& s) { return s.has_value(); });
    if (!complete && now - overdue_->asked < options_.warning / 2) return;
    if (lowest_waiting(statuses, waiting) == options_.rank) {
      speak(waiting, causes(statuses, waiting));
    } else {
      overdue_->settled = true;
    }
  }

  // Returns the lowest rank that waits for this collective; this rank if no lower one does.
  int lowest_waiting(const Statuses& statuses, const CollectiveEntry& entry) const {
    for (int rank = 0; rank < options_.rank; ++rank) {
      const auto& status = statuses[static_cast<size_t>(rank)];
      const RankStatus::Issued* same = status ? status->find(entry.number) : nullptr;
      if (same && same->waiting && same->identity_hash == entry.identity.hash()) return rank;
    }
    return options_.rank;
  }

  std::string causes(const Statuses& statuses, const CollectiveEntry& entry) const {
    std::string text;
    for (size_t rank = 0; rank < statuses.size(); ++rank) {
      const std::string trouble = trouble_of(options_.names[rank], statuses[rank], entry);
      if (!trouble.empty()) text += (text.empty() ? "" : "; ") + trouble;
    }
    return text.empty() ? "all ranks have issued it: is the network or a device slow?" : text;
  }

  void speak(const CollectiveEntry& entry, const std::string& why) {
    watchdog_.say(c10::str("fsdp: rank ", record_.rank(), " has waited ", seconds_text(Clock::now() - entry.waited),
                           " for its ", entry.identity.describe(), " (#", entry.number, "): ", why));
    overdue_->settled = overdue_->said = true;
  }

  void say_how_it_ended() {
    const std::optional<CollectiveEntry> entry = record_.find(options_.group, overdue_->number);
    if (overdue_->said && entry && entry->state == CollectiveEntry::State::kDone) {
      watchdog_.say(c10::str("fsdp: rank ", record_.rank(), " goes on: ", entry->identity.describe(), " (#",
                             entry->number, ") took ", seconds_text(entry->ended - entry->waited)));
    }
    overdue_.reset();
  }

  const Watchdog& watchdog_;
  const FlightRecord& record_;
  const GroupOptions options_;
  std::optional<StatusBoard> board_;
  std::string silence_;  // why there is no board
  int64_t answered_ = 0;
  std::optional<Overdue> overdue_;
};

Watchdog::Watchdog(std::shared_ptr<FlightRecord> record, Log log) : record_(std::move(record)), log_(std::move(log)) {}

Watchdog::~Watchdog() {
  {
    std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Watchdog::watch(GroupOptions options) {
  const std::chrono::milliseconds period = period_for(options.warning);
  std::lock_guard lock(mutex_);
  period_ = guards_.empty() ? period : std::min(period_, period);
  guards_.push_back(std::make_shared<Guard>(*this, std::move(options)));
  if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
}

void Watchdog::run() {
  pthread_setname_np(pthread_self(), "fsdp_watchdog");
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, period_, [this] { return stopped_; })) {
    const std::vector<std::shared_ptr<Guard>> guards = guards_;
    lock.unlock();
    for (const auto& guard : guards) guard->look();
    lock.lock();
  }
}

void Watchdog::say(const std::string& line) const {
  if (log_) {
    log_(line);
    return;
  }
  const std::string with_end = line + "\n";
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, with_end.data(), with_end.size());
}

}  // namespace fsdp::comm
