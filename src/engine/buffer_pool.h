// Memory for unsharded and gradient buffers, reused from one unit to the next.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <mutex>
#include <vector>

namespace fsdp {

// Hands out flat buffers on one device. Threads: safe.
class BufferPool {
 public:
  explicit BufferPool(c10::Device device) : device_(device) {}

  // A 1-D tensor of `numel` elements, contents undefined. Give it back with release().
  at::Tensor acquire(int64_t numel, at::ScalarType dtype);
  void release(const at::Tensor& buffer);

  // Test mode: released buffers are overwritten with NaN patterns, and their addresses are not used again soon.
  void set_poison(bool on);

  // How many times memory was asked of the allocator so far.
  int64_t allocations() const { return allocations_; }
  // Bytes handed out and not given back, now and at most so far.
  int64_t in_use_bytes() const { return in_use_bytes_; }
  int64_t peak_bytes() const { return peak_bytes_; }

 private:
  at::Tensor take_fitting(int64_t nbytes);

  c10::Device device_;
  std::mutex mutex_;
  std::deque<at::Tensor> free_;  // byte tensors, oldest release first
  int64_t allocations_ = 0;
  int64_t in_use_bytes_ = 0;
  int64_t peak_bytes_ = 0;
  bool poison_ = false;
};

}  // namespace fsdp
