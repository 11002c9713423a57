#include "flat/part_of_whole.h"

#include <ATen/ops/cat.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>

namespace fsdp::flat {

int64_t PartOfWhole::size_on(int of) const {
  int64_t sum = 0;
  for (const IndexRange& range : of_rank[static_cast<size_t>(of)]) sum += range.size();
  return sum;
}

std::string PartOfWhole::describe() const {
  return c10::str("split along dimension ", dim, " over ", of_rank.size(), " ranks");
}

std::vector<std::vector<IndexRange>> deal_groups(const std::vector<int64_t>& sections, int64_t groups, int ranks) {
  const int64_t each = groups / ranks, more = groups % ranks;
  std::vector<std::vector<IndexRange>> result(static_cast<size_t>(ranks));
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const int64_t first = rank * each + std::min(rank, more), count = each + (rank < more ? 1 : 0);
    int64_t start = 0;
    for (const int64_t section : sections) {
      TORCH_INTERNAL_ASSERT(groups > 0 && section % groups == 0);
      const int64_t group = section / groups;
      result[static_cast<size_t>(rank)].push_back({start + first * group, start + (first + count) * group});
      start += section;
    }
  }
  return result;
}

at::Tensor cut_out(const at::Tensor& whole, const PartOfWhole& part) {
  const at::Tensor outermost = whole.detach().movedim(part.dim, 0);
  std::vector<at::Tensor> pieces;
  for (const IndexRange& range : part.ranges()) pieces.push_back(outermost.slice(0, range.begin, range.end));
  return at::cat(pieces).contiguous().movedim(0, part.dim);
}

}  // namespace fsdp::flat
