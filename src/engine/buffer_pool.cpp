#include "engine/buffer_pool.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <optional>

#include "torch_seams/clean_dispatch.h"

namespace fsdp::engine {
namespace {

// While poisoning, this many buffers stay unused so that addresses rotate.
constexpr size_t kQuarantine = 3;

int64_t nbytes_of(const at::Tensor& buffer) { return static_cast<int64_t>(buffer.storage().nbytes()); }

}  // namespace

at::Tensor BufferPool::acquire(int64_t numel, at::ScalarType dtype, Residence residence, const void* owner) {
  seams::CleanDispatchGuard clean;
  return acquire_bytes(numel * static_cast<int64_t>(c10::elementSize(dtype)), residence, owner, /*padding=*/0)
      .view(dtype);
}

at::Tensor BufferPool::acquire_bytes(int64_t nbytes, Residence residence, const void* owner, int64_t padding) {
  seams::CleanDispatchGuard clean;
  base::MutexLock lock(mutex_);
  at::Tensor bytes = take(nbytes, residence, owner).narrow(0, 0, nbytes);
  order_.before_use(bytes);
  in_use_bytes_ += nbytes - padding;
  peak_bytes_ = std::max(peak_bytes_.load(), in_use_bytes_.load());
  return bytes;
}

at::Tensor BufferPool::take(int64_t nbytes, Residence residence, const void* owner) {
  if (source_) {
    base::AllocationTag tag(purpose_);
    at::Tensor bytes = source_(schedule::BlockPlaces::rounded(nbytes));
    count_reserved(nbytes_of(bytes));
    return bytes;
  }
  if (residence == Residence::kStaying && !poison_) return take_staying(nbytes, owner);
  if (residence == Residence::kTransient && !poison_) {
    if (std::optional<at::Tensor> reserved = arena_.take(nbytes)) return *reserved;
  }
  return take_fitting(schedule::BlockPlaces::rounded(nbytes), residence);
}

at::Tensor BufferPool::take_staying(int64_t nbytes, const void* owner) {
  Staying& staying = staying_[owner];
  if (staying.in_use) return take_fitting(schedule::BlockPlaces::rounded(nbytes), Residence::kTransient);
  if (!staying.bytes.defined() || nbytes_of(staying.bytes) < nbytes) {
    if (staying.bytes.defined()) {
      count_reserved(-nbytes_of(staying.bytes));
      before_freeing(staying.bytes);
      staying_owners_.erase(staying.bytes.storage().unsafeGetStorageImpl());
      staying.bytes.reset();
    }
    staying.bytes = allocate(schedule::BlockPlaces::rounded(nbytes));
    staying_owners_[staying.bytes.storage().unsafeGetStorageImpl()] = owner;
  }
  staying.in_use = true;
  return staying.bytes;
}

BufferPool::StayingBuffers::iterator BufferPool::staying_of(const at::Tensor& buffer) {
  const auto owner = staying_owners_.find(buffer.storage().unsafeGetStorageImpl());
  return owner == staying_owners_.end() ? staying_.end() : staying_.find(owner->second);
}

at::Tensor BufferPool::take_fitting(int64_t nbytes, Residence residence) {
  base::FreeBuffers& free = residence == Residence::kAside ? free_aside_ : free_;
  if (auto bytes = free.take(nbytes, poison_ ? kQuarantine : 0)) return *bytes;
  if (auto largest = poison_ ? std::nullopt : free.take_largest()) release_to_allocator(*largest);
  at::Tensor bytes = allocate(nbytes);
  if (residence == Residence::kAside) aside_.insert(bytes.storage().unsafeGetStorageImpl());
  return bytes;
}

void BufferPool::release_to_allocator(const at::Tensor& bytes) {
  before_freeing(bytes);
  count_reserved(-nbytes_of(bytes));
  aside_.erase(bytes.storage().unsafeGetStorageImpl());
}

at::Tensor BufferPool::allocate(int64_t nbytes) {
  base::AllocationTag tag(purpose_);
  base::CurrentStreamGuard at_home(home_);
  at::Tensor bytes = at::empty({nbytes}, at::TensorOptions().dtype(at::kByte).device(device_));
  order_.after_use(bytes);  // after uses of what the allocator had there before
  count_reserved(nbytes);
  return bytes;
}

void BufferPool::before_freeing(const at::Tensor& bytes) {
  base::CurrentStreamGuard at_home(home_);
  order_.before_use(bytes);
}

void BufferPool::count_reserved(int64_t nbytes) {
  reserved_bytes_ += nbytes;
  peak_reserved_bytes_ = std::max(peak_reserved_bytes_.load(), reserved_bytes_.load());
}

void BufferPool::release(const at::Tensor& buffer, int64_t padding) {
  seams::CleanDispatchGuard clean;
  base::MutexLock lock(mutex_);
  in_use_bytes_ -= static_cast<int64_t>(buffer.nbytes()) - padding;
  if (release_adopted(buffer)) return;
  order_.after_use(buffer);
  if (source_) {
    count_reserved(-nbytes_of(buffer));
    return;
  }
  if (const auto staying = staying_of(buffer); staying != staying_.end()) {
    staying->second.in_use = false;
    if (!keeps_memory_) {
      release_kept(staying);
    }
  } else if (!arena_.release(buffer)) {
    release_or_keep(buffer);
  }
}

void BufferPool::release_or_keep(const at::Tensor& buffer) {
  at::Tensor bytes = at::empty({0}, at::TensorOptions().dtype(at::kByte).device(device_));
  bytes.set_(buffer.storage(), 0, {nbytes_of(buffer)}, {1});
  if (!keeps_memory_ && !poison_) {
    release_to_allocator(bytes);
    return;
  }
  if (poison_) {
    bytes.fill_(0xFF);
    order_.after_use(bytes);
  }
  bool aside = aside_.count(bytes.storage().unsafeGetStorageImpl()) > 0;
  (aside ? free_aside_ : free_).add(bytes);
}

void BufferPool::note_held(int64_t nbytes) {
  base::MutexLock lock(mutex_);
  in_use_bytes_ += nbytes;
  peak_bytes_ = std::max(peak_bytes_.load(), in_use_bytes_.load());
  count_reserved(nbytes);
}

at::Tensor BufferPool::adopt(const at::Tensor& tensor, const c10::Stream& home) {
  note_held(static_cast<int64_t>(tensor.nbytes()));
  base::MutexLock lock(mutex_);
  adopted_.emplace(tensor.storage().unsafeGetStorageImpl(), home);
  return tensor;
}

// Releases an adopted buffer. Returns false if the buffer was not adopted.
bool BufferPool::release_adopted(const at::Tensor& buffer) {
  const auto adopted = adopted_.find(buffer.storage().unsafeGetStorageImpl());
  if (adopted == adopted_.end()) return false;
  if (poison_) buffer.view(at::kByte).fill_(0xFF);
  count_reserved(-static_cast<int64_t>(buffer.nbytes()));
  base::order_streams(base::current_stream(device_), adopted->second);
  adopted_.erase(adopted);
  return true;
}

void BufferPool::release_kept(const void* owner) {
  base::MutexLock lock(mutex_);
  auto it = staying_.find(owner);
  if (it != staying_.end() && !it->second.in_use) {
    release_kept(it);
  }
}

void BufferPool::release_kept(StayingBuffers::iterator staying) {
  count_reserved(-nbytes_of(staying->second.bytes));
  before_freeing(staying->second.bytes);
  staying_owners_.erase(staying->second.bytes.storage().unsafeGetStorageImpl());
  staying_.erase(staying);
}

void BufferPool::reserve(int64_t nbytes) {
  base::MutexLock lock(mutex_);
  if (poison_ || source_ || !keeps_memory_ || nbytes == arena_.capacity() || !arena_.empty()) return;
  while (auto bytes = free_.take_largest()) release_to_allocator(*bytes);
  count_reserved(nbytes - arena_.capacity());
  base::CurrentStreamGuard at_home(home_);
  if (arena_.memory().defined()) order_.before_use(arena_.memory());
  base::AllocationTag tag(purpose_);
  arena_.resize(nbytes);
  if (arena_.memory().defined()) order_.after_use(arena_.memory());
}

void BufferPool::set_poison(bool on) {
  base::MutexLock lock(mutex_);
  poison_ = on;
}

}  // namespace fsdp::engine
