#include "schedule/block_places.h"

#include <algorithm>
#include <cstddef>

namespace fsdp::schedule {

int64_t BlockPlaces::rounded(int64_t nbytes) {
  return std::max((nbytes + kGranularity - 1) / kGranularity * kGranularity, kGranularity);
}

std::optional<int64_t> BlockPlaces::take(int64_t nbytes) {
  const int64_t wanted = rounded(nbytes);
  std::optional<Block> best;
  size_t place = 0;
  int64_t begin = 0;
  for (size_t i = 0; i <= blocks_.size(); ++i) {
    const int64_t end = i < blocks_.size() ? blocks_[i].begin : capacity_;
    if (end - begin >= wanted && (!best || end - begin < best->end - best->begin)) {
      best = Block{begin, end};
      place = i;
    }
    begin = i < blocks_.size() ? blocks_[i].end : end;
  }
  if (!best) return std::nullopt;
  const bool at_top = best->begin > 0 && best->end == capacity_;
  const int64_t first = at_top ? best->end - wanted : best->begin;
  blocks_.insert(blocks_.begin() + static_cast<ptrdiff_t>(place), {first, first + wanted});
  return first;
}

bool BlockPlaces::release(int64_t begin) {
  const auto found = std::find_if(blocks_.begin(), blocks_.end(), [&](const Block& b) { return b.begin == begin; });
  if (found == blocks_.end()) return false;
  blocks_.erase(found);
  return true;
}

}  // namespace fsdp::schedule
