// Storages that can be emptied and refilled under live tensors, and that know what they belong to.
//
// A keyed storage keeps its size for ever; its memory comes and goes. While it has none, reading its pointer throws a
// message that names the parameter (rule R1). The owner is found from any tensor that shares the storage without a
// look-up table: it is the context of the storage's DataPtr, recognised by a private deleter (rule R6).
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

// What a keyed storage belongs to. Lives as long as any DataPtr or engine refers to it. A deferred one has a class of
// its own (deferred/deferred_storage.h), and no unit.
struct StorageOwner : c10::intrusive_ptr_target {
  // kShard: a shard that other ranks read where it lies, so that writes to it have to be seen before they happen, or
  // one that is going to move.
  enum class Kind : uint8_t { kParameter, kGradientSentinel, kDeferred, kShard };

  StorageOwner(Kind kind_, void* unit_, int64_t index_) : kind(kind_), unit(unit_), index(index_) {}
  ~StorageOwner() override { notify(); }

  const Kind kind;
  // The unit (fsdp::Unit) and the parameter's position in it. Null once the engine is gone. They change when units are
  // cut anew (Options::auto_units), while nothing is in use.
  std::atomic<void*> unit;
  std::atomic<int64_t> index;
  // Called once, when the last reference goes.
  std::function<void()> gone;

  // Runs before the destructor while weak references are left.
  void release_resources() override { notify(); }

 private:
  void notify() {
    if (auto callback = std::exchange(gone, nullptr)) {
      callback();
    }
  }
};

using StorageOwnerPtr = c10::intrusive_ptr<StorageOwner>;

// A storage of `nbytes` without memory. Reading its pointer throws `message`.
c10::Storage make_empty_storage(const StorageOwnerPtr& owner, size_t nbytes, c10::Device device,
                                const std::string& message);

// Points the storage at `data`, which the caller owns and keeps alive until empty_storage.
void fill_storage(c10::StorageImpl& storage, const StorageOwnerPtr& owner, void* data);

// Takes the memory away again; the message given at creation is thrown to whoever reads the pointer.
void empty_storage(c10::StorageImpl& storage, const StorageOwnerPtr& owner);

// Replaces the message of an empty storage.
void set_empty_message(c10::StorageImpl& storage, const std::string& message);

// The owner of a tensor's storage, or null when it is not a keyed storage.
StorageOwner* storage_owner(const at::TensorBase& tensor);

// A tensor with the sharded key over `storage`, of the given geometry; `offset` in elements.
at::Tensor make_keyed_tensor(const c10::Storage& storage, at::ScalarType dtype, at::IntArrayRef sizes,
                             at::IntArrayRef strides, int64_t offset = 0);

// Makes `tensor`, a leaf without a gradient, show what `view` shows; like set_data, and also from the meta device to a
// real one, which set_data refuses.
void replace_data(const at::Tensor& tensor, const at::Tensor& view);

}  // namespace fsdp::seams
