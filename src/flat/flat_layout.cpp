#include "flat/flat_layout.h"

#include <c10/util/Exception.h>

#include <algorithm>

namespace fsdp::flat {

FlatLayout::FlatLayout(std::vector<int64_t> numels, int64_t sharding_factor)
    : numels_(std::move(numels)), sharding_factor_(sharding_factor) {
  TORCH_CHECK(sharding_factor >= 1, "fsdp: sharding factor ", sharding_factor, ": must be at least 1");
  for (int64_t numel : numels_) {
    TORCH_CHECK(numel >= 0, "fsdp: a parameter with ", numel, " elements");
    offsets_.push_back(offsets_.back() + numel);
  }
  shard_numel_ = (unpadded_numel() + sharding_factor_ - 1) / sharding_factor_;
}

ParameterSlice FlatLayout::slice(int64_t parameter, int64_t rank) const {
  int64_t shard_begin = rank * shard_numel_;
  int64_t shard_end = shard_begin + shard_numel_;
  int64_t begin = std::clamp(shard_begin, offsets_.at(parameter), offsets_.at(parameter + 1));
  int64_t end = std::clamp(shard_end, begin, offsets_.at(parameter + 1));
  int64_t shard_offset = begin == end ? 0 : begin - shard_begin;
  int64_t origin = begin == end ? begin : offsets_.at(parameter);
  return {begin - origin, end - origin, shard_offset};
}

int64_t FlatLayout::owned_numel(int64_t rank) const {
  return std::clamp<int64_t>(unpadded_numel() - rank * shard_numel_, 0, shard_numel_);
}

}  // namespace fsdp::flat
