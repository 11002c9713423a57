// The arithmetic of a FlatParameter: how its parameters are dealt to the ranks of a shard group. Uses no tensors.
#pragma once

#include <cstdint>
#include <vector>

#include "fsdp/shard_cut.h"

namespace fsdp::flat {

// One parameter: its elements, and the size of the dimension that is cut, usually the first one. A row is a slice of
// that dimension, whose elements lie together.
struct ParameterExtent {
  int64_t numel = 0;
  int64_t rows = 1;
  int64_t row_numel() const { return rows == 0 ? 0 : numel / rows; }
};

// Elements [begin, end) of one parameter, which lie at shard_offset in a rank's shard. Empty if begin == end.
struct ParameterSlice {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t shard_offset = 0;
  int64_t numel() const { return end - begin; }
  bool operator==(const ParameterSlice&) const = default;
};

// [Note: two orders of a unit's elements]
// In a whole buffer, parameters follow one another without gaps, and what is left is at the end. In *rank order*, the
// shards of all ranks follow one another, each with its own padding: collectives move data in this order. With the flat
// cut both are the same: flatten, concatenate, pad on the right, cut into equal chunks (FSDP paper, section 3.2.1,
// figures 3 and 4). With the cut by rows, each parameter is split over the ranks as torch.chunk splits its first
// dimension, or another one that is the outermost in memory. All shards then have the places of the first one, whose
// parts are the largest, so they have equal sizes, and a part that is smaller or empty is followed by padding.
class FlatLayout {
 public:
  FlatLayout() = default;
  // sharding_factor >= 1. If there is one rank, the cut makes no difference.
  FlatLayout(std::vector<ParameterExtent> parameters, int64_t sharding_factor, ShardCut cut);

  int64_t num_parameters() const { return static_cast<int64_t>(parameters_.size()); }
  int64_t sharding_factor() const { return sharding_factor_; }
  ShardCut cut() const { return cut_; }
  const ParameterExtent& extent(int64_t parameter) const { return parameters_.at(parameter); }
  int64_t numel(int64_t parameter) const { return parameters_.at(parameter).numel; }
  // The offset of a parameter in a whole buffer.
  int64_t offset(int64_t parameter) const { return offsets_.at(parameter); }
  // The number of elements without and with padding; both orders have the latter.
  int64_t unpadded_numel() const { return offsets_.back(); }
  int64_t padded_numel() const { return shard_numel_ * sharding_factor_; }
  // The number of elements of padding: with the flat cut, at most sharding_factor - 1, all at the end.
  int64_t padding() const { return padded_numel() - unpadded_numel(); }
  // The number of elements of each rank's shard, padding included: the same for all ranks.
  int64_t shard_numel() const { return shard_numel_; }
  // Whether rank order is the order of a whole buffer.
  bool is_in_rank_order() const { return in_rank_order_; }

  // Returns the slice of a parameter that position `rank` of the shard group (0 … sharding_factor - 1) holds.
  ParameterSlice slice(int64_t parameter, int64_t rank) const;
  // Returns how many of the elements in the rank's shard are not padding.
  int64_t owned_numel(int64_t rank) const;

  // -- the cut by rows --
  // The place of a parameter in each shard, and the rows for which there is room.
  int64_t place_in_shards(int64_t parameter) const { return places_.at(parameter); }
  int64_t rows_of_shard(int64_t parameter) const;

 private:
  ParameterSlice flat_slice(int64_t parameter, int64_t rank) const;
  ParameterSlice row_slice(int64_t parameter, int64_t rank) const;

  std::vector<ParameterExtent> parameters_;
  std::vector<int64_t> offsets_ = {0};  // one more than parameters
  std::vector<int64_t> places_;         // by parameter; empty with the flat cut
  int64_t sharding_factor_ = 1;
  int64_t shard_numel_ = 0;
  ShardCut cut_ = ShardCut::kFlat;
  bool in_rank_order_ = true;
};

}  // namespace fsdp::flat
