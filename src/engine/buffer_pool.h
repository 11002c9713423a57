// Memory for unsharded and gradient buffers: planned where the order of units is known, else reused as it comes.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <unordered_map>
#include <utility>

#include "base/free_buffers.h"
#include "base/stream_order.h"
#include "engine/arena.h"

namespace fsdp {

// How long a buffer lives beside others.
enum class Residence : uint8_t {
  kPassing,  // until the next unit's is needed: in the arena, if there is one
  kStaying,  // while many others come and go: memory of its owner's own
  kAside,    // small; reused as it comes
};

// Hands out buffers on one device, of which memory comes from and goes back to the stream that is current at
// construction: [Note: memory reuse by events]. Threads: safe.
class BufferPool {
 public:
  // `keeps_memory`: of buffers that are released; passing ones come from one arena then, once their order is known.
  // `source`: where memory comes from in place of the allocator, and goes back to: it is not used again here, nor
  // written when it is released, as others may still read it.
  using Source = std::function<at::Tensor(int64_t nbytes)>;
  BufferPool(c10::Device device, bool keeps_memory, Source source = {})
      : device_(device),
        keeps_memory_(keeps_memory),
        source_(std::move(source)),
        home_(current_stream(device)),
        arena_(device) {}

  // A 1-D kByte tensor of `nbytes`, contents undefined, for use on the current stream. Give it back with release(), on
  // the stream that is behind all its uses. `owner`: tells staying buffers apart. `padding`: how many of the bytes do
  // not count as used.
  at::Tensor acquire_bytes(int64_t nbytes, Residence residence, const void* owner, int64_t padding);
  // The same as `numel` elements of `dtype`.
  at::Tensor acquire(int64_t numel, at::ScalarType dtype, Residence residence, const void* owner = nullptr);
  void release(const at::Tensor& buffer, int64_t padding = 0);

  bool keeps_memory() const { return keeps_memory_; }
  // Whether any memory will do for a buffer.
  bool may_adopt() const { return !source_; }
  // Bytes of tensors that wait for a buffer, now more or fewer: they count as handed out.
  void note_held(int64_t nbytes);
  // Makes a tensor that was made on `home` a buffer: release() then orders that stream behind its uses, and the memory
  // goes with the tensor. Returns the tensor.
  at::Tensor adopt(const at::Tensor& tensor, const c10::Stream& home);

  // Gives back the memory that is kept for an owner, which holds none of it now.
  void forget(const void* owner);

  // Passing buffers come from one arena of this size from now on, as long as they fit. Takes effect, and gives back the
  // memory of passing buffers that were used before, once none is handed out. Without effect where these keep none.
  void plan(int64_t nbytes);

  // Test mode: released buffers are overwritten with NaN patterns, and their addresses are not used again soon.
  void set_poison(bool on);

  // Bytes handed out and not given back, now and at most so far.
  int64_t in_use_bytes() const { return in_use_bytes_; }
  int64_t peak_bytes() const { return peak_bytes_; }
  // Bytes that it has from the allocator, handed out or not, now and at most so far.
  int64_t reserved_bytes() const { return reserved_bytes_; }
  int64_t peak_reserved_bytes() const { return peak_reserved_bytes_; }

 private:
  struct Staying {
    at::Tensor bytes;
    bool in_use = false;
  };
  using StayingBuffers = std::map<const void*, Staying>;
  at::Tensor take(int64_t nbytes, Residence residence, const void* owner);
  at::Tensor take_staying(int64_t nbytes, const void* owner);
  at::Tensor take_fitting(int64_t nbytes, Residence residence);
  void give_up(const at::Tensor& bytes);
  void forget(StayingBuffers::iterator staying);
  void give_back_or_keep(const at::Tensor& buffer);
  bool let_go(const at::Tensor& buffer);
  StayingBuffers::iterator staying_of(const at::Tensor& buffer);
  at::Tensor allocate(int64_t nbytes);
  void before_freeing(const at::Tensor& bytes);
  void count_reserved(int64_t nbytes);

  c10::Device device_;
  const bool keeps_memory_;
  const Source source_;
  c10::Stream home_;
  std::mutex mutex_;
  MemoryOrder order_;
  Arena arena_;
  StayingBuffers staying_;
  std::unordered_map<const c10::StorageImpl*, const void*> staying_owners_;
  FreeBuffers free_;
  FreeBuffers free_aside_;
  std::set<const c10::StorageImpl*> aside_;  // what belongs to free_aside_
  std::map<const c10::StorageImpl*, c10::Stream> adopted_;
  std::atomic<int64_t> in_use_bytes_{0};
  int64_t peak_bytes_ = 0;
  std::atomic<int64_t> reserved_bytes_{0};
  int64_t peak_reserved_bytes_ = 0;
  bool poison_ = false;
};

}  // namespace fsdp
