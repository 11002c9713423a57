// The storage of deferred tensors, which has no memory but knows the recorded operator that wrote it last.
//
// A deferred storage is *recorded* (it has no memory; replay computes its value) or *resident* (it has memory, which
// contains its value). Small constants are resident from the start; other storages become resident when their elements
// are needed.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <vector>

#include "deferred/recorded_operator.h"
#include "torch_seams/keyed_storage.h"

namespace fsdp::deferred {

struct DeferredStorage final : seams::StorageOwner {
  DeferredStorage(size_t nbytes, c10::Device device_);
  ~DeferredStorage() override;

  c10::Storage twin;  // on the meta device
  c10::Device device;
  OperatorPtr writer;
  c10::Storage memory;                 // if resident; kept when recorded again: pointers to it may exist
  std::atomic<bool> resident = false;  // becomes true under the lock of replay
};

// Returns the number of deferred storages in the process: while it is 0, no tensor need be checked.
int64_t live_storages();

// Returns the deferred storage of a tensor, or null if it has none.
DeferredStorage* find(const at::TensorBase& tensor);

// Returns a deferred tensor with the shape of `shape`, a tensor on the meta device, in a storage of its own.
at::Tensor make_deferred(const at::Tensor& shape, c10::Device device);
// Returns another view of a deferred tensor's storage, with the shape of `shape`.
at::Tensor make_view(const at::Tensor& deferred, const at::Tensor& shape);
// Returns a tensor with the same shape over the twin.
at::Tensor twin_of(const at::Tensor& deferred);

// Gives memory and values to the storages of these deferred tensors.
void make_resident(const std::vector<at::Tensor>& deferred);
// Makes a tensor's storage resident in `memory`, which contains its value.
void make_resident(const at::Tensor& deferred, c10::Storage memory);
// Makes the storage recorded: from now on, `writer` produces its value.
void make_recorded(const at::Tensor& deferred, OperatorPtr writer);

}  // namespace fsdp::deferred
