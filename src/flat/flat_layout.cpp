#include "flat/flat_layout.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

namespace fsdp::flat {
namespace {

int64_t divided_up(int64_t numel, int64_t parts) { return (numel + parts - 1) / parts; }

}  // namespace

FlatLayout::FlatLayout(std::vector<ParameterExtent> parameters, int64_t sharding_factor, ShardCut cut)
    : parameters_(std::move(parameters)),
      sharding_factor_(sharding_factor),
      cut_(sharding_factor == 1 ? ShardCut::kFlat : cut) {
  TORCH_CHECK(sharding_factor >= 1, "fsdp: sharding factor ", sharding_factor, ": must be at least 1");
  for (const ParameterExtent& parameter : parameters_) {
    TORCH_CHECK(parameter.numel >= 0 && parameter.rows >= 0, "fsdp: a parameter with ", parameter.numel,
                " elements in ", parameter.rows, " rows");
    offsets_.push_back(offsets_.back() + parameter.numel);
  }
  if (cut_ == ShardCut::kFlat) {
    shard_numel_ = divided_up(unpadded_numel(), sharding_factor_);
    return;
  }
  for (int64_t i = 0; i < num_parameters(); ++i) {
    places_.push_back(shard_numel_);
    shard_numel_ += rows_of_shard(i) * extent(i).row_numel();
  }
  in_rank_order_ = num_parameters() == 1 && padding() == 0;
}

int64_t FlatLayout::rows_of_shard(int64_t parameter) const {
  return divided_up(extent(parameter).rows, sharding_factor_);
}

ParameterSlice FlatLayout::slice(int64_t parameter, int64_t rank) const {
  return cut_ == ShardCut::kFlat ? flat_slice(parameter, rank) : row_slice(parameter, rank);
}

ParameterSlice FlatLayout::flat_slice(int64_t parameter, int64_t rank) const {
  int64_t shard_begin = rank * shard_numel_;
  int64_t shard_end = shard_begin + shard_numel_;
  int64_t begin = std::clamp(shard_begin, offsets_.at(parameter), offsets_.at(parameter + 1));
  int64_t end = std::clamp(shard_end, begin, offsets_.at(parameter + 1));
  int64_t shard_offset = begin == end ? 0 : begin - shard_begin;
  int64_t origin = begin == end ? begin : offsets_.at(parameter);
  return {begin - origin, end - origin, shard_offset};
}

ParameterSlice FlatLayout::row_slice(int64_t parameter, int64_t rank) const {
  const ParameterExtent& whole = extent(parameter);
  const int64_t rows = rows_of_shard(parameter);
  const int64_t begin = std::min(rank * rows, whole.rows), end = std::min(begin + rows, whole.rows);
  if (begin == end || whole.numel == 0) return {};
  return {begin * whole.row_numel(), end * whole.row_numel(), places_.at(parameter)};
}

int64_t FlatLayout::owned_numel(int64_t rank) const {
  int64_t owned = 0;
  for (int64_t i = 0; i < num_parameters(); ++i) owned += slice(i, rank).numel();
  return owned;
}

}  // namespace fsdp::flat

namespace fsdp {

const char* to_string(ShardCut cut) { return cut == ShardCut::kRows ? "rows" : "flat"; }

}  // namespace fsdp
