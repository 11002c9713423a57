#include "comm/shm/shared_heap.h"

#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace fsdp::comm {
namespace {

constexpr int64_t kAlignment = 64;

// Large blocks begin and end at page boundaries, so that trim() can release all of their pages.
int64_t rounded(int64_t nbytes) {
  const int64_t unit = nbytes >= SharedMemory::kPage ? SharedMemory::kPage : kAlignment;
  return std::max((nbytes + unit - 1) / unit * unit, kAlignment);
}

}  // namespace

at::Tensor SharedHeap::take(int64_t nbytes) {
  const int64_t begin = place(rounded(nbytes));
  return at::from_blob(
      memory_->data() + begin, {nbytes}, [heap = shared_from_this(), begin](void*) { heap->release(begin); },
      at::kByte);
}

// Returns the beginning of the smallest gap that is large enough, preferring gaps with pages; without one, appends a
// block.
int64_t SharedHeap::place(int64_t nbytes) {
  base::MutexLock lock(mutex_);
  release_read_blocks();
  auto best = gaps_.end();
  for (auto gap = gaps_.begin(); gap != gaps_.end(); ++gap) {
    const auto order = [](const Gap& one) { return std::pair(!one.backed, one.nbytes); };
    if (gap->second.nbytes >= nbytes && (best == gaps_.end() || order(gap->second) < order(best->second))) best = gap;
  }
  int64_t begin = end_;
  bool backed = false;
  if (best != gaps_.end()) {
    const auto [found, gap] = *best;
    begin = found;
    backed = gap.backed;
    gaps_.erase(best);
    if (gap.nbytes > nbytes) gaps_.emplace(begin + nbytes, Gap{gap.nbytes - nbytes, gap.backed});
  } else {
    TORCH_CHECK(end_ + nbytes <= memory_->nbytes(), "ranks of this host share at most ", memory_->nbytes(),
                " bytes of memory each; ", nbytes, " more do not fit");
    end_ += nbytes;
  }
  if (!backed) {
    try {
      memory_->reserve(begin, nbytes);
    } catch (...) {
      add_gap(begin, {nbytes, false});
      throw;
    }
  }
  blocks_.emplace(begin, Block{nbytes, {}, true});
  in_use_ += nbytes;
  return begin;
}

std::optional<int64_t> SharedHeap::place_of(const at::Tensor& tensor) const {
  const auto* address = static_cast<const char*>(tensor.const_data_ptr());
  if (!memory_->contains(address)) return std::nullopt;
  return address - memory_->data();
}

void SharedHeap::hold(const at::Tensor& tensor, std::function<bool()> read) {
  const std::optional<int64_t> place = place_of(tensor);
  TORCH_CHECK(place, "a tensor that does not lie in shared memory cannot be held there");
  base::MutexLock lock(mutex_);
  auto block = std::prev(blocks_.upper_bound(*place));
  auto& readers = block->second.readers;
  std::erase_if(readers, [](const auto& done) { return done(); });
  readers.push_back(std::move(read));
}

void SharedHeap::release(int64_t begin) {
  base::MutexLock lock(mutex_);
  blocks_.at(begin).referred = false;
  release_read_blocks();
}

void SharedHeap::release_read_blocks() {
  for (auto block = blocks_.begin(); block != blocks_.end();) {
    auto& [begin, held] = *block;
    if (!held.referred) std::erase_if(held.readers, [](const auto& done) { return done(); });
    if (held.referred || !held.readers.empty()) {
      ++block;
      continue;
    }
    in_use_ -= held.nbytes;
    add_gap(begin, {held.nbytes, true});
    block = blocks_.erase(block);
  }
}

void SharedHeap::add_gap(int64_t begin, Gap gap) {
  const auto next = gaps_.find(begin + gap.nbytes);
  if (next != gaps_.end() && next->second.backed == gap.backed) {
    gap.nbytes += next->second.nbytes;
    gaps_.erase(next);
  }
  auto before = gaps_.lower_bound(begin);
  if (before != gaps_.begin()) {
    --before;
    if (before->first + before->second.nbytes == begin && before->second.backed == gap.backed) {
      before->second.nbytes += gap.nbytes;
      return;
    }
  }
  gaps_.emplace(begin, gap);
}

void SharedHeap::trim(int64_t keep) {
  base::MutexLock lock(mutex_);
  release_read_blocks();
  int64_t unused = 0;
  for (const auto& [begin, gap] : gaps_) unused += gap.backed ? gap.nbytes : 0;
  if (unused <= keep) return;
  for (auto& [begin, gap] : std::exchange(gaps_, {})) {
    if (gap.backed) memory_->release(begin, gap.nbytes);
    // Pages at the ends of the gap that also belong to blocks stay, and are reserved again when they are used.
    add_gap(begin, {gap.nbytes, false});
  }
}

int64_t SharedHeap::nbytes_in_use() const {
  base::MutexLock lock(mutex_);
  return in_use_;
}

}  // namespace fsdp::comm
