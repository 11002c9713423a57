#include "comm/checked/collective_record.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cstdio>
#include <utility>

namespace fsdp::comm {
namespace {

using State = CollectiveEntry::State;

}  // namespace

std::string seconds_text(CollectiveEntry::Clock::duration time) {
  char text[32];
  const double seconds = std::chrono::duration<double>(time).count();
  std::snprintf(text, sizeof(text), seconds < 1 ? "%.3g ms" : "%.1f s", seconds < 1 ? seconds * 1000 : seconds);
  return text;
}

CollectiveEntry::Clock::time_point CollectiveEntry::since() const {
  switch (state) {
    case State::kIssued:
      return issued;
    case State::kWaiting:
      return waited;
    default:
      return ended;
  }
}

std::string CollectiveEntry::progress(Clock::time_point now) const {
  switch (state) {
    case State::kIssued:
      return c10::str("issued ", seconds_text(now - issued), " ago, not waited for yet");
    case State::kWaiting:
      return c10::str("waiting for ", seconds_text(now - waited));
    case State::kDone:
      return c10::str("done after ", seconds_text(ended - issued), ", ", seconds_text(now - ended), " ago");
    case State::kFailed:
      return c10::str("failed after ", seconds_text(ended - issued), ", ", seconds_text(now - ended), " ago");
  }
  TORCH_CHECK(false, "fsdp: unknown state of a collective ", static_cast<int>(state));
}

FlightRecord::FlightRecord(int rank, size_t capacity) : rank_(rank), ring_(capacity) {
  TORCH_CHECK(capacity > 0, "fsdp: a record of collectives needs room for one");
}

int FlightRecord::add_group(std::string name) {
  base::MutexLock lock(mutex_);
  groups_.push_back({std::move(name)});
  return static_cast<int>(groups_.size()) - 1;
}

FlightRecord::Ticket FlightRecord::issue(int group, const CollectiveIdentity& identity) {
  const Clock::time_point now = Clock::now();
  base::MutexLock lock(mutex_);
  const uint64_t serial = next_serial_++;
  CollectiveEntry& entry = ring_[serial % ring_.size()];
  entry.group = group;
  entry.number = groups_[static_cast<size_t>(group)].issued++;
  groups_[static_cast<size_t>(group)].last_change = now;
  entry.identity = identity;
  entry.state = State::kIssued;
  entry.issued = now;
  return {serial};
}

CollectiveEntry* FlightRecord::entry_of(Ticket ticket) {
  return ticket.serial + ring_.size() >= next_serial_ ? &ring_[ticket.serial % ring_.size()] : nullptr;
}

void FlightRecord::waiting(Ticket ticket) {
  const Clock::time_point now = Clock::now();
  base::MutexLock lock(mutex_);
  if (CollectiveEntry* entry = entry_of(ticket)) {
    entry->state = State::kWaiting;
    entry->waited = now;
    groups_[static_cast<size_t>(entry->group)].last_change = now;
  }
}

void FlightRecord::end(Ticket ticket, State state) {
  const Clock::time_point now = Clock::now();
  base::MutexLock lock(mutex_);
  if (CollectiveEntry* entry = entry_of(ticket)) {
    entry->state = state;
    entry->ended = now;
    groups_[static_cast<size_t>(entry->group)].last_change = now;
  }
}

void FlightRecord::done(Ticket ticket) { end(ticket, State::kDone); }
void FlightRecord::failed(Ticket ticket) { end(ticket, State::kFailed); }

FlightRecord::Clock::time_point FlightRecord::last_change(int group) const {
  base::MutexLock lock(mutex_);
  return groups_.at(static_cast<size_t>(group)).last_change;
}

uint64_t FlightRecord::issued(int group) const {
  base::MutexLock lock(mutex_);
  return groups_.at(static_cast<size_t>(group)).issued;
}

std::vector<CollectiveEntry> FlightRecord::entries(std::optional<int> group) const {
  base::MutexLock lock(mutex_);
  std::vector<CollectiveEntry> result;
  for (uint64_t serial = next_serial_ - std::min<uint64_t>(next_serial_, ring_.size()); serial < next_serial_;
       ++serial) {
    const CollectiveEntry& entry = ring_[serial % ring_.size()];
    if (!group || entry.group == *group) result.push_back(entry);
  }
  return result;
}

std::optional<CollectiveEntry> FlightRecord::longest_waiting(int group) const {
  base::MutexLock lock(mutex_);
  const CollectiveEntry* longest = nullptr;
  for (uint64_t serial = next_serial_ - std::min<uint64_t>(next_serial_, ring_.size()); serial < next_serial_;
       ++serial) {
    const CollectiveEntry& entry = ring_[serial % ring_.size()];
    if (entry.group == group && entry.state == State::kWaiting && (!longest || entry.waited < longest->waited)) {
      longest = &entry;
    }
  }
  return longest ? std::optional(*longest) : std::nullopt;
}

std::optional<CollectiveEntry> FlightRecord::last() const {
  base::MutexLock lock(mutex_);
  return next_serial_ == 0 ? std::nullopt : std::optional(ring_[(next_serial_ - 1) % ring_.size()]);
}

std::optional<CollectiveEntry> FlightRecord::find(int group, uint64_t number) const {
  for (CollectiveEntry& entry : entries(group)) {
    if (entry.number == number) return std::move(entry);
  }
  return std::nullopt;
}

std::string FlightRecord::line(const CollectiveEntry& entry, Clock::time_point now) const {
  std::string group;
  {
    base::MutexLock lock(mutex_);
    if (groups_.size() > 1) group = c10::str(" in group '", groups_.at(static_cast<size_t>(entry.group)).name, "'");
  }
  return c10::str("rank ", rank_, ", #", entry.number, " ", entry.identity.describe(), group, ": ",
                  entry.progress(now));
}

std::string FlightRecord::text(size_t lines) const {
  const std::vector<CollectiveEntry> all = entries();
  const Clock::time_point now = Clock::now();
  std::string text;
  for (size_t i = all.size() - std::min(lines, all.size()); i < all.size(); ++i) text += line(all[i], now) + "\n";
  return text;
}

}  // namespace fsdp::comm
