#include "comm/buffer_pool.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

namespace fsdp {

at::Tensor BufferPool::take(int64_t bytes) {
  auto best = free_.end();
  for (auto it = free_.begin(); it != free_.end(); ++it) {
    if (it->numel() >= bytes && (best == free_.end() || it->numel() < best->numel())) best = it;
  }
  if (best == free_.end()) {
    // A buffer that is too small makes room for the larger one, so that not both are kept.
    const auto smaller = [](const at::Tensor& a, const at::Tensor& b) { return a.numel() < b.numel(); };
    if (!free_.empty()) free_.erase(std::max_element(free_.begin(), free_.end(), smaller));
    return at::empty({bytes}, at::kByte);
  }
  at::Tensor buffer = std::move(*best);
  free_.erase(best);
  return buffer;
}

void BufferPool::give_back(at::Tensor buffer) { free_.push_back(std::move(buffer)); }

}  // namespace fsdp
