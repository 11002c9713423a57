#include "comm/shm/shm_channels.h"

#include <atomic>
#include <cstring>
#include <set>
#include <utility>

namespace fsdp::comm {

struct alignas(64) ShmChannels::Channel {
  std::atomic<int64_t> first;   // one more than the position of the first letter; 0: there is none yet
  std::atomic<uint64_t> taken;  // messages that the receiver needs no more
};

struct ShmChannels::StoredLetter {
  std::atomic<int64_t> next;  // as Channel::first
  int64_t payload;
  char header[kHeaderBytes];
};

struct ShmChannels::Outbox {
  uint64_t count = 0;
  at::Tensor last;  // the last letter
};

// The letters from number `taken` on that this rank has found.
struct ShmChannels::Inbox {
  uint64_t taken = 0;
  std::deque<Letter> letters;
  std::set<uint64_t> taken_ahead;  // before others that were sent earlier
  int64_t last = kNowhere;         // position of the last letter found
};

static_assert(std::atomic<int64_t>::is_always_lock_free && std::atomic<uint64_t>::is_always_lock_free);

int64_t ShmChannels::nbytes(int ranks) { return static_cast<int64_t>(sizeof(Channel)) * ranks * ranks; }

ShmChannels::ShmChannels(std::shared_ptr<SharedMemory> memory, int64_t begin, int rank,
                         std::vector<std::shared_ptr<SharedMemory>> heaps, std::shared_ptr<SharedHeap> own)
    : memory_(std::move(memory)),
      begin_(begin),
      rank_(rank),
      heaps_(std::move(heaps)),
      own_(std::move(own)),
      outboxes_(heaps_.size()),
      inboxes_(heaps_.size()) {}
ShmChannels::~ShmChannels() = default;

ShmChannels::Channel& ShmChannels::channel(int from, int to) const {
  return reinterpret_cast<Channel*>(memory_->data() +
                                    begin_)[static_cast<size_t>(from) * heaps_.size() + static_cast<size_t>(to)];
}

ShmChannels::StoredLetter& ShmChannels::stored(int from, int64_t place) const {
  return *reinterpret_cast<StoredLetter*>(heaps_[static_cast<size_t>(from)]->data() + place);
}

uint64_t ShmChannels::appended(int to) const { return outboxes_[static_cast<size_t>(to)].count; }

uint64_t ShmChannels::append(int to, const char* header, const at::Tensor& payload) {
  Outbox& outbox = outboxes_[static_cast<size_t>(to)];
  Channel& channel = this->channel(rank_, to);
  const uint64_t number = outbox.count++;
  const auto keep_until = [&](const at::Tensor& block, uint64_t count) {
    own_->hold(block,
               [memory = memory_, &channel, count] { return channel.taken.load(std::memory_order_acquire) >= count; });
    return *own_->place_of(block);
  };
  const at::Tensor block = own_->take(sizeof(StoredLetter));
  auto& letter = *new (block.mutable_data_ptr()) StoredLetter;
  letter.next.store(0, std::memory_order_relaxed);
  letter.payload = payload.defined() ? keep_until(payload, number + 1) : kNowhere;
  std::memcpy(letter.header, header, kHeaderBytes);
  const int64_t link = keep_until(block, number + 2) + 1;
  auto& before = number == 0 ? channel.first : static_cast<StoredLetter*>(outbox.last.mutable_data_ptr())->next;
  before.store(link, std::memory_order_release);
  outbox.last = block;
  return number;
}

bool ShmChannels::is_taken(int to, uint64_t number) const {
  return channel(rank_, to).taken.load(std::memory_order_acquire) > number;
}

// Follows the list by one letter, if there is a further one.
bool ShmChannels::look_for_next(int from) {
  Inbox& inbox = inboxes_[static_cast<size_t>(from)];
  const auto& link = inbox.last == kNowhere ? channel(from, rank_).first : stored(from, inbox.last).next;
  const int64_t place = link.load(std::memory_order_acquire) - 1;
  if (place < 0) return false;
  inbox.last = place;
  const StoredLetter& letter = stored(from, place);
  inbox.letters.push_back({letter.header, letter.payload});
  return true;
}

const ShmChannels::Letter* ShmChannels::find(int from, uint64_t number) {
  Inbox& inbox = inboxes_[static_cast<size_t>(from)];
  while (number >= inbox.taken + inbox.letters.size()) {
    if (!look_for_next(from)) return nullptr;
  }
  return &inbox.letters[number - inbox.taken];
}

// Counts a message only when its letter was found, since the way to later letters leads through it.
void ShmChannels::take(int from, uint64_t number) {
  Inbox& inbox = inboxes_[static_cast<size_t>(from)];
  inbox.taken_ahead.insert(number);
  const uint64_t before = inbox.taken;
  while (!inbox.taken_ahead.empty() && *inbox.taken_ahead.begin() == inbox.taken &&
         find(from, inbox.taken) != nullptr) {
    inbox.taken_ahead.erase(inbox.taken_ahead.begin());
    inbox.letters.pop_front();
    ++inbox.taken;
  }
  if (inbox.taken > before) channel(from, rank_).taken.store(inbox.taken, std::memory_order_release);
}

}  // namespace fsdp::comm
