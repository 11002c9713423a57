#include "engine/buffer_pool.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "torch_seams/clean_dispatch.h"

namespace fsdp {
namespace {

constexpr int64_t kGranularity = 512;  // bytes
// While poisoning, this many buffers stay unused so that addresses rotate.
constexpr size_t kQuarantine = 3;

int64_t nbytes_of(const at::Tensor& buffer) { return static_cast<int64_t>(buffer.storage().nbytes()); }

}  // namespace

at::Tensor BufferPool::acquire(int64_t numel, at::ScalarType dtype) {
  seams::CleanDispatchGuard clean;
  int64_t wanted = numel * static_cast<int64_t>(c10::elementSize(dtype));
  int64_t nbytes = std::max((wanted + kGranularity - 1) / kGranularity * kGranularity, kGranularity);
  at::Tensor bytes;
  {
    std::lock_guard lock(mutex_);
    bytes = take_fitting(nbytes);
    in_use_bytes_ += wanted;
    peak_bytes_ = std::max(peak_bytes_, in_use_bytes_);
  }
  return bytes.narrow(0, 0, wanted).view(dtype);
}

at::Tensor BufferPool::take_fitting(int64_t nbytes) {
  auto best = free_.end();
  auto end = poison_ ? free_.begin() + (free_.size() > kQuarantine ? free_.size() - kQuarantine : 0) : free_.end();
  for (auto it = free_.begin(); it != end; ++it) {
    if (nbytes_of(*it) >= nbytes && (best == free_.end() || nbytes_of(*it) < nbytes_of(*best))) {
      best = it;
    }
  }
  if (best != free_.end()) {
    at::Tensor bytes = *best;
    free_.erase(best);
    return bytes;
  }
  // Nothing fits: a buffer that is too small makes room for the larger one, so that the pool does not keep both.
  if (!poison_ && !free_.empty()) {
    free_.erase(std::max_element(free_.begin(), free_.end(),
                                 [](const at::Tensor& a, const at::Tensor& b) { return nbytes_of(a) < nbytes_of(b); }));
  }
  ++allocations_;
  return at::empty({nbytes}, at::TensorOptions().dtype(at::kByte).device(device_));
}

void BufferPool::release(const at::Tensor& buffer) {
  seams::CleanDispatchGuard clean;
  at::Tensor bytes = at::empty({0}, at::TensorOptions().dtype(at::kByte).device(device_));
  bytes.set_(buffer.storage(), 0, {nbytes_of(buffer)}, {1});
  if (poison_) {
    bytes.fill_(0xFF);
  }
  std::lock_guard lock(mutex_);
  in_use_bytes_ -= static_cast<int64_t>(buffer.nbytes());
  free_.push_back(bytes);
}

void BufferPool::set_poison(bool on) {
  std::lock_guard lock(mutex_);
  poison_ = on;
}

}  // namespace fsdp
