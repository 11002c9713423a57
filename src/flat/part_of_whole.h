// The part of a parameter that one rank of a tensor-parallel group holds.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace fsdp::flat {

// Indices [begin, end) along one dimension.
struct IndexRange {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
  bool operator==(const IndexRange&) const = default;
};

struct PartOfWhole {
  std::vector<int64_t> whole_sizes;
  int64_t dim = 0;  // along which the parameter is cut
  // By rank of the group: the indices that it holds, ascending; one range for each section.
  std::vector<std::vector<IndexRange>> of_rank;
  int rank = 0;
  // How operators use it: SplitStyle.
  bool gathers_outputs = false;
  bool takes_part_of_inputs = false;

  const std::vector<IndexRange>& ranges() const { return of_rank[static_cast<size_t>(rank)]; }
  int64_t size_on(int rank) const;
  int64_t size() const { return size_on(rank); }
  // "split along dimension 0 over 2 ranks"
  std::string describe() const;
  bool operator==(const PartOfWhole&) const = default;
};

// Cuts `size` indices for `ranks` ranks: each of the sections into `groups` groups, of which the first ranks get one
// more if need be. `groups` must divide the size of each section. A rank may get nothing.
std::vector<std::vector<IndexRange>> deal_groups(const std::vector<int64_t>& sections, int64_t groups, int ranks);

// Returns a copy of this rank's part of `whole`. The dimension along which it is cut is the outermost in memory, so
// that in that order a part is one range of the whole for each of its ranges of indices.
at::Tensor cut_out(const at::Tensor& whole, const PartOfWhole& part);

}  // namespace fsdp::flat
