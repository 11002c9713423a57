#include "base/free_buffers.h"

#include <algorithm>
#include <utility>

namespace fsdp::base {
namespace {

bool smaller(const at::Tensor& a, const at::Tensor& b) { return a.numel() < b.numel(); }

}  // namespace

std::optional<at::Tensor> FreeBuffers::take(int64_t nbytes, size_t resting) {
  auto best = free_.end();
  const auto end = free_.begin() + static_cast<ptrdiff_t>(free_.size() > resting ? free_.size() - resting : 0);
  for (auto it = free_.begin(); it != end; ++it) {
    if (it->numel() >= nbytes && (best == free_.end() || smaller(*it, *best))) best = it;
  }
  if (best == free_.end()) return std::nullopt;
  at::Tensor bytes = std::move(*best);
  free_.erase(best);
  return bytes;
}

std::optional<at::Tensor> FreeBuffers::take_largest() {
  if (free_.empty()) return std::nullopt;
  const auto largest = std::max_element(free_.begin(), free_.end(), smaller);
  at::Tensor bytes = std::move(*largest);
  free_.erase(largest);
  return bytes;
}

}  // namespace fsdp::base
