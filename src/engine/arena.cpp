#include "engine/arena.h"

#include <ATen/ops/empty.h>

#include <algorithm>

namespace fsdp {

int64_t Arena::rounded(int64_t nbytes) {
  return std::max((nbytes + kGranularity - 1) / kGranularity * kGranularity, kGranularity);
}

std::optional<at::Tensor> Arena::take(int64_t nbytes) {
  const int64_t wanted = rounded(nbytes);
  std::optional<Block> best;
  size_t place = 0;
  int64_t begin = 0;
  for (size_t i = 0; i <= blocks_.size(); ++i) {
    const int64_t end = i < blocks_.size() ? blocks_[i].begin : capacity();
    if (end - begin >= wanted && (!best || end - begin < best->end - best->begin)) {
      best = Block{begin, end};
      place = i;
    }
    begin = i < blocks_.size() ? blocks_[i].end : end;
  }
  if (!best) {
    return std::nullopt;
  }
  const bool at_top = best->begin > 0 && best->end == capacity();
  const int64_t first = at_top ? best->end - wanted : best->begin;
  blocks_.insert(blocks_.begin() + static_cast<ptrdiff_t>(place), {first, first + wanted});
  return memory_.narrow(0, first, nbytes);
}

bool Arena::give_back(const at::Tensor& block) {
  if (!memory_.defined() || !block.is_alias_of(memory_)) {
    return false;
  }
  const int64_t begin = block.storage_offset() * static_cast<int64_t>(block.element_size());
  const auto found = std::find_if(blocks_.begin(), blocks_.end(), [&](const Block& b) { return b.begin == begin; });
  TORCH_CHECK(found != blocks_.end(), "fsdp: a buffer was given back twice");
  blocks_.erase(found);
  return true;
}

void Arena::resize(int64_t nbytes) {
  TORCH_CHECK(empty(), "fsdp: an arena is in use and cannot be replaced");
  memory_.reset();
  if (nbytes > 0) {
    memory_ = at::empty({nbytes}, at::TensorOptions().dtype(at::kByte).device(device_));
  }
}

}  // namespace fsdp
