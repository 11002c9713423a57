#include "comm/checked/status_board.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <sstream>
#include <utility>

#include "comm/meeting/meeting_point_impl.h"

namespace fsdp::comm {
namespace {

const char* const kRequests = "watchdog/requests";

std::string answer_key(int rank) { return c10::str("watchdog/rank ", rank); }

// Writes one line with the request and the number of collectives, one with what the rank does, and one for each
// collective.
std::string encode(int64_t request, const RankStatus& status) {
  std::ostringstream out;
  out << request << " " << status.issued << "\n" << status.doing << "\n";
  for (const RankStatus::Issued& one : status.last) {
    out << one.number << " " << one.identity_hash << " " << one.waiting << " " << one.description << "\n";
  }
  return out.str();
}

std::pair<int64_t, RankStatus> decode(const std::string& text) {
  std::istringstream in(text);
  std::string line;
  int64_t request = 0;
  RankStatus status;
  in >> request >> status.issued;
  std::getline(in, line);
  std::getline(in, status.doing);
  for (RankStatus::Issued one; in >> one.number >> one.identity_hash >> one.waiting; status.last.push_back(one)) {
    std::getline(in >> std::ws, one.description);
  }
  return {request, std::move(status)};
}

// Names may contain newlines, which would end a line of a note too early.
std::string one_line(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

std::string doing(const FlightRecord& record) {
  const std::vector<CollectiveEntry> all = record.entries();
  const auto waiting = std::find_if(all.begin(), all.end(), [](const CollectiveEntry& entry) {
    return entry.state == CollectiveEntry::State::kWaiting;
  });
  if (all.empty()) return c10::str("rank ", record.rank(), " has issued no collective yet");
  return record.line(waiting != all.end() ? *waiting : all.back(), FlightRecord::Clock::now());
}

}  // namespace

const RankStatus::Issued* RankStatus::find(uint64_t number) const {
  const auto found = std::find_if(last.begin(), last.end(), [&](const Issued& one) { return one.number == number; });
  return found == last.end() ? nullptr : &*found;
}

RankStatus status_of(const FlightRecord& record, int group) {
  RankStatus status;
  status.issued = record.issued(group);
  status.doing = one_line(doing(record));
  for (const CollectiveEntry& entry : record.entries(group)) {
    status.last.push_back({entry.number, entry.identity.hash(), entry.state == CollectiveEntry::State::kWaiting,
                           one_line(entry.identity.describe())});
  }
  return status;
}

StatusBoard::StatusBoard(std::shared_ptr<MeetingPoint> point, int rank, int size)
    : point_(std::move(point)), rank_(rank), size_(size) {}
StatusBoard::~StatusBoard() = default;

int64_t StatusBoard::ask() { return point_->store()->add(kRequests, 1); }
int64_t StatusBoard::asked() { return point_->store()->add(kRequests, 0); }

void StatusBoard::answer(int64_t request, const RankStatus& status) {
  const std::string text = encode(request, status);
  point_->store()->set(answer_key(rank_), std::vector<uint8_t>(text.begin(), text.end()));
}

std::vector<std::optional<RankStatus>> StatusBoard::answers_to(int64_t request) {
  std::vector<std::optional<RankStatus>> answers(static_cast<size_t>(size_));
  c10d::Store& store = *point_->store();
  for (int rank = 0; rank < size_; ++rank) {
    const std::string key = answer_key(rank);
    if (!store.check({key})) continue;  // get would wait for the key
    const std::vector<uint8_t> bytes = store.get(key);
    auto [answered, status] = decode({bytes.begin(), bytes.end()});
    if (answered >= request) answers[static_cast<size_t>(rank)] = std::move(status);
  }
  return answers;
}

}  // namespace fsdp::comm
