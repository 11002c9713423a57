// The arithmetic of a FlatParameter: flatten, concatenate, pad on the right, cut into equal chunks (FSDP paper, section
// 3.2.1, figures 3 and 4). Uses no tensors.
#pragma once

#include <cstdint>
#include <vector>

namespace fsdp::flat {

// Elements [begin, end) of one parameter, which lie at shard_offset in a rank's shard. Empty if begin == end.
struct ParameterSlice {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t shard_offset = 0;
  int64_t numel() const { return end - begin; }
  bool operator==(const ParameterSlice&) const = default;
};

class FlatLayout {
 public:
  FlatLayout() = default;
  // `numels` contains the numbers of elements of the parameters, in order. sharding_factor >= 1.
  FlatLayout(std::vector<int64_t> numels, int64_t sharding_factor);

  int64_t num_parameters() const { return static_cast<int64_t>(numels_.size()); }
  int64_t sharding_factor() const { return sharding_factor_; }
  int64_t numel(int64_t parameter) const { return numels_.at(parameter); }
  // The offset of a parameter in the flat buffer.
  int64_t offset(int64_t parameter) const { return offsets_.at(parameter); }
  // The number of elements without and with padding. Padding is at most sharding_factor - 1 elements, all at the end.
  int64_t unpadded_numel() const { return offsets_.back(); }
  int64_t padded_numel() const { return shard_numel_ * sharding_factor_; }
  int64_t padding() const { return padded_numel() - unpadded_numel(); }
  // The number of elements of each rank's shard, padding included: the same for all ranks.
  int64_t shard_numel() const { return shard_numel_; }

  // Returns the slice of a parameter that position `rank` of the shard group (0 … sharding_factor - 1) holds.
  ParameterSlice slice(int64_t parameter, int64_t rank) const;
  // Returns how many of the elements in the rank's shard are not padding.
  int64_t owned_numel(int64_t rank) const;

 private:
  std::vector<int64_t> numels_;
  std::vector<int64_t> offsets_ = {0};  // one more than parameters
  int64_t sharding_factor_ = 1;
  int64_t shard_numel_ = 0;
};

}  // namespace fsdp::flat
