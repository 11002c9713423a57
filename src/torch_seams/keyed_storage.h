// Storages that can be emptied and refilled under live tensors, and that know their owner.
//
// A keyed storage never changes its size, but its memory can be attached and removed. While it has no memory, reading
// its pointer throws an error that names the parameter (rule R1). The owner can be found from any tensor that shares
// the storage, without a look-up table: it is the context of the storage's DataPtr, recognised by a private deleter
// (rule R6).
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>
#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

namespace fsdp::seams {

// The owner of a keyed storage. Lives as long as any DataPtr or engine refers to it. The owner of a deferred storage
// has a class of its own (deferred/deferred_storage.h) and no unit.
struct StorageOwner : c10::intrusive_ptr_target {
  // kShard is either a shard that other ranks read in place, so that the engine must see writes to it before they
  // happen, or a shard that is going to move.
  enum class Kind : uint8_t { kParameter, kGradientSentinel, kDeferred, kShard };

  StorageOwner(Kind kind_, void* unit_, int64_t index_) : kind(kind_), unit(unit_), index(index_) {}
  ~StorageOwner() override { notify(); }

  const Kind kind;
  // The unit (fsdp::Unit), and the parameter's position in it. `unit` is null once the engine is destroyed. Both change
  // when units are cut anew (Options::auto_units), while no parameter is in use.
  std::atomic<void*> unit;
  std::atomic<int64_t> index;
  // Called once, when the last reference is dropped.
  std::function<void()> gone;

  // Runs before the destructor if weak references are left.
  void release_resources() override { notify(); }

 private:
  void notify() {
    if (auto callback = std::exchange(gone, nullptr)) callback();
  }
};

using StorageOwnerPtr = c10::intrusive_ptr<StorageOwner>;

// Returns a storage of `nbytes` without memory. Reading its pointer throws an error with `message`.
c10::Storage make_empty_storage(const StorageOwnerPtr& owner, size_t nbytes, c10::Device device,
                                const std::string& message);

// Points the storage at `data`, which the caller owns and keeps alive until empty_storage.
void fill_storage(c10::StorageImpl& storage, const StorageOwnerPtr& owner, void* data);

// Removes the memory from the storage. Reading its pointer then throws the message given at creation.
void empty_storage(c10::StorageImpl& storage, const StorageOwnerPtr& owner);

// Replaces the message of an empty storage.
void set_empty_message(c10::StorageImpl& storage, const std::string& message);

// Returns the owner of a tensor's storage, or null if the storage is not keyed.
StorageOwner* storage_owner(const at::TensorBase& tensor);

// Returns a tensor with the sharded key over `storage`, with the given geometry; `offset` is in elements.
at::Tensor make_keyed_tensor(const c10::Storage& storage, at::ScalarType dtype, at::IntArrayRef sizes,
                             at::IntArrayRef strides, int64_t offset = 0);

// Makes `tensor`, a leaf without a gradient, refer to the data of `view`, like set_data. Unlike set_data, it also
// accepts a change from the meta device to a real one.
void replace_data(const at::Tensor& tensor, const at::Tensor& view);

}  // namespace fsdp::seams
