#include "comm/staging_pool.h"

#include <ATen/ops/empty.h>

#include <utility>

namespace fsdp {

at::Tensor StagingPool::take(int64_t bytes) {
  if (auto buffer = free_.take(bytes)) return *buffer;
  free_.take_largest();
  return at::empty({bytes}, at::kByte);
}

void StagingPool::give_back(at::Tensor buffer) { free_.add(std::move(buffer)); }

}  // namespace fsdp
