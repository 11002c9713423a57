#include "comm/staged/staging_pool.h"

#include <ATen/ops/empty.h>

#include <utility>

namespace fsdp::comm {
namespace {

constexpr int64_t kSmallBytes = int64_t{1} << 16;

}  // namespace

at::Tensor StagingPool::take(int64_t bytes) {
  if (auto buffer = free_.take(bytes)) return *buffer;
  free_.take_largest();
  return at::empty({bytes}, at::kByte);
}

void StagingPool::release(at::Tensor buffer) { free_.add(std::move(buffer)); }

void StagingPool::trim() {
  while (auto largest = free_.take_largest()) {
    if (largest->numel() <= kSmallBytes) {
      free_.add(*std::move(largest));
      return;
    }
  }
}

}  // namespace fsdp::comm
