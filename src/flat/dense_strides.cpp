#include "flat/dense_strides.h"

#include <algorithm>

namespace fsdp::flat {

std::vector<int64_t> strides_with_outermost(c10::IntArrayRef sizes, int64_t dim) {
  std::vector<int64_t> strides(sizes.size());
  int64_t stride = 1;
  for (int64_t d = static_cast<int64_t>(sizes.size()) - 1; d >= 0; --d) {
    if (d == dim) continue;
    strides[d] = stride;
    stride *= std::max<int64_t>(sizes[d], 1);
  }
  if (!sizes.empty()) strides[dim] = stride;
  return strides;
}

}  // namespace fsdp::flat
