// Memory for unsharded and gradient buffers: reserved in an arena if the order of units is known, otherwise reused as
// requests come.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <unordered_map>
#include <utility>

#include "base/allocation_tag.h"
#include "base/free_buffers.h"
#include "base/mutex.h"
#include "base/stream_order.h"
#include "engine/arena.h"

namespace fsdp::engine {

// How long a buffer lives in comparison with others.
enum class Residence : uint8_t {
  kTransient,  // until the next unit's buffer is needed; in the arena, if there is one
  kStaying,    // while many others come and go; has memory that is kept for its owner
  kAside,      // small; reuses any free memory of this kind that fits
};

// Hands out buffers on one device. Their memory is allocated and freed on the stream that is current at construction:
// [Note: memory reuse by events]. Threads: safe.
class BufferPool {
 public:
  // `keeps_memory`: the memory of released buffers is kept for reuse, and transient buffers come from one arena once
  // their order is known. `purpose`: of all memory of the pool. `source`: provides memory instead of the allocator, and
  // gets it back. The pool neither reuses such memory nor writes to it at release, because other ranks may still read
  // it.
  using Source = std::function<at::Tensor(int64_t nbytes)>;
  BufferPool(c10::Device device, bool keeps_memory, base::AllocationPurpose purpose, Source source = {})
      : device_(device),
        keeps_memory_(keeps_memory),
        purpose_(purpose),
        source_(std::move(source)),
        home_(base::current_stream(device)),
        arena_(device) {}

  // Returns a 1-D kByte tensor of `nbytes` with undefined contents, for use on the current stream. Pass it to
  // release() on a stream that comes after all its uses. `owner`: distinguishes staying buffers. `padding`: how many of
  // the bytes do not count as used.
  at::Tensor acquire_bytes(int64_t nbytes, Residence residence, const void* owner, int64_t padding);
  // Like acquire_bytes, but returns `numel` elements of `dtype`, without padding.
  at::Tensor acquire(int64_t numel, at::ScalarType dtype, Residence residence, const void* owner = nullptr);
  void release(const at::Tensor& buffer, int64_t padding = 0);

  bool keeps_memory() const { return keeps_memory_; }
  // Whether adopt() may be called: without a source, a buffer may lie in any memory.
  bool may_adopt() const { return !source_; }
  // Adds `nbytes`, which may be negative, to the bytes of tensors that wait for a buffer. They count as handed out.
  void note_held(int64_t nbytes);
  // Turns a tensor that was allocated on the stream `home` into a buffer and returns it. release() then makes `home`
  // wait for the uses of the buffer, and the memory is freed with the tensor.
  at::Tensor adopt(const at::Tensor& tensor, const c10::Stream& home);

  // Releases the memory that is kept for an owner. Has no effect while the owner holds it.
  void release_kept(const void* owner);

  // Makes transient buffers come from one arena of this size from now on, as long as they fit, and frees the memory
  // kept from transient buffers of before. Has no effect while buffers of the arena are handed out, in test mode, with
  // a source, or if the pool keeps no memory.
  void reserve(int64_t nbytes);

  // Test mode: released buffers are overwritten with NaN patterns, and their addresses are not used again soon.
  void set_poison(bool on);

  // Bytes handed out and not released: now, and the peak so far.
  int64_t in_use_bytes() const { return in_use_bytes_; }
  int64_t peak_bytes() const { return peak_bytes_; }
  // Bytes obtained from the allocator, handed out or not: now, and the peak so far.
  int64_t reserved_bytes() const { return reserved_bytes_; }
  int64_t peak_reserved_bytes() const { return peak_reserved_bytes_; }

 private:
  struct Staying {
    at::Tensor bytes;
    bool in_use = false;
  };
  using StayingBuffers = std::map<const void*, Staying>;
  at::Tensor take(int64_t nbytes, Residence residence, const void* owner) FSDP_REQUIRES(mutex_);
  at::Tensor take_staying(int64_t nbytes, const void* owner) FSDP_REQUIRES(mutex_);
  at::Tensor take_fitting(int64_t nbytes, Residence residence) FSDP_REQUIRES(mutex_);
  void release_to_allocator(const at::Tensor& bytes) FSDP_REQUIRES(mutex_);
  void release_kept(StayingBuffers::iterator staying) FSDP_REQUIRES(mutex_);
  void release_or_keep(const at::Tensor& buffer) FSDP_REQUIRES(mutex_);
  bool release_adopted(const at::Tensor& buffer) FSDP_REQUIRES(mutex_);
  StayingBuffers::iterator staying_of(const at::Tensor& buffer) FSDP_REQUIRES(mutex_);
  at::Tensor allocate(int64_t nbytes) FSDP_REQUIRES(mutex_);
  void before_freeing(const at::Tensor& bytes) FSDP_REQUIRES(mutex_);
  void count_reserved(int64_t nbytes) FSDP_REQUIRES(mutex_);

  c10::Device device_;
  const bool keeps_memory_;
  const base::AllocationPurpose purpose_;
  const Source source_;
  c10::Stream home_;
  base::Mutex mutex_;
  base::MemoryOrder order_ FSDP_GUARDED_BY(mutex_);
  Arena arena_ FSDP_GUARDED_BY(mutex_);
  StayingBuffers staying_ FSDP_GUARDED_BY(mutex_);
  std::unordered_map<const c10::StorageImpl*, const void*> staying_owners_ FSDP_GUARDED_BY(mutex_);
  base::FreeBuffers free_ FSDP_GUARDED_BY(mutex_);
  base::FreeBuffers free_aside_ FSDP_GUARDED_BY(mutex_);
  std::set<const c10::StorageImpl*> aside_ FSDP_GUARDED_BY(mutex_);  // memory that belongs to free_aside_
  std::map<const c10::StorageImpl*, c10::Stream> adopted_ FSDP_GUARDED_BY(mutex_);
  std::atomic<int64_t> in_use_bytes_{0};
  std::atomic<int64_t> peak_bytes_{0};
  std::atomic<int64_t> reserved_bytes_{0};
  std::atomic<int64_t> peak_reserved_bytes_{0};
  bool poison_ FSDP_GUARDED_BY(mutex_) = false;
};

}  // namespace fsdp::engine
