#include "comm/buffer_pool.h"

#include <ATen/ops/empty.h>

#include <utility>

namespace fsdp {

at::Tensor BufferPool::take(int64_t bytes) {
  auto best = free_.end();
  for (auto it = free_.begin(); it != free_.end(); ++it) {
    if (it->numel() >= bytes && (best == free_.end() || it->numel() < best->numel())) best = it;
  }
  if (best == free_.end()) return at::empty({bytes}, at::kByte);
  at::Tensor buffer = std::move(*best);
  free_.erase(best);
  return buffer;
}

void BufferPool::give_back(at::Tensor buffer) { free_.push_back(std::move(buffer)); }

}  // namespace fsdp
