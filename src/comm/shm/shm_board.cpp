#include "comm/shm/shm_board.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <utility>

namespace fsdp::comm {
namespace {

constexpr auto kSpin = std::chrono::microseconds(4);
constexpr int kSteps = 2;

// The kernel identifies the word by its memory, so processes that map it at different addresses use the same futex.
void futex(const std::atomic<uint32_t>& word, int operation, uint32_t value, const timespec* limit) {
  syscall(SYS_futex, &word, operation, value, limit, nullptr, 0);
}

}  // namespace

struct alignas(64) ShmBoard::Slot {
  std::atomic<uint64_t> published[kSteps];  // one more than the collective's number
  Post post;
};

struct alignas(64) ShmBoard::Column {
  std::atomic<uint64_t> finished_below;
  Slot slots[kDepth];
};

struct alignas(64) ShmBoard::Bell {
  std::atomic<uint32_t> changes;
  std::atomic<uint32_t> sleepers;
};

static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free);

int64_t ShmBoard::nbytes(int ranks) { return static_cast<int64_t>(sizeof(Bell) + ranks * sizeof(Column)); }

ShmBoard::ShmBoard(std::shared_ptr<SharedMemory> memory, int rank, int ranks)
    : memory_(std::move(memory)), rank_(rank), ranks_(ranks) {}

ShmBoard::Bell& ShmBoard::bell() const { return *reinterpret_cast<Bell*>(memory_->data()); }

ShmBoard::Column& ShmBoard::column(int rank) const {
  return reinterpret_cast<Column*>(memory_->data() + sizeof(Bell))[rank];
}

ShmBoard::Post& ShmBoard::own(uint64_t sequence) const { return column(rank_).slots[sequence % kDepth].post; }

void ShmBoard::publish(uint64_t sequence, int step) {
  column(rank_).slots[sequence % kDepth].published[step].store(sequence + 1, std::memory_order_release);
  ring();
}

const ShmBoard::Post* ShmBoard::of(int rank, uint64_t sequence, int step) const {
  const Slot& slot = column(rank).slots[sequence % kDepth];
  return slot.published[step].load(std::memory_order_acquire) == sequence + 1 ? &slot.post : nullptr;
}

void ShmBoard::finish_below(uint64_t sequence) {
  column(rank_).finished_below.store(sequence, std::memory_order_release);
  ring();
}

bool ShmBoard::finished(int rank, uint64_t sequence) const {
  return column(rank).finished_below.load(std::memory_order_acquire) > sequence;
}

bool ShmBoard::all_finished(uint64_t sequence) const {
  for (int rank = 0; rank < ranks_; ++rank) {
    if (!finished(rank, sequence)) return false;
  }
  return true;
}

// If a rank is about to sleep, either this rank sees the count of sleepers, or that rank sees the change.
void ShmBoard::ring() const {
  bell().changes.fetch_add(1, std::memory_order_seq_cst);
  if (bell().sleepers.load(std::memory_order_seq_cst) > 0) futex(bell().changes, FUTEX_WAKE, INT_MAX, nullptr);
}

uint32_t ShmBoard::changes() const { return bell().changes.load(std::memory_order_seq_cst); }

void ShmBoard::await_change(uint32_t seen, std::chrono::milliseconds limit) const {
  const auto began = std::chrono::steady_clock::now();
  while (std::chrono::steady_clock::now() - began < kSpin) {
    if (changes() != seen) return;
  }
  const timespec time{limit.count() / 1000, limit.count() % 1000 * 1000000};
  bell().sleepers.fetch_add(1, std::memory_order_seq_cst);
  futex(bell().changes, FUTEX_WAIT, seen, &time);
  bell().sleepers.fetch_sub(1, std::memory_order_seq_cst);
}

}  // namespace fsdp::comm
