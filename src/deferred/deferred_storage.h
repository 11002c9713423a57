// The storage of deferred tensors: without memory, but it knows which recorded operator has written it last.
//
// A deferred storage is *recorded* (no memory; its value is what replay makes of it) or *resident* (memory, which is
// its value). Small constants are resident from the start; the others become so when something needs their elements.
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
  c10::Storage memory;  // of a resident one; kept when it turns into a recorded one, for whoever has a pointer to it
  std::atomic<bool> resident = false;  // turns true under the lock of replay
};

// How many there are in the process: while none, nobody need look for them.
int64_t live_storages();

// The deferred storage of a tensor, or null.
DeferredStorage* find(const at::TensorBase& tensor);

// A deferred tensor with the shape of `shape`, a tensor on the meta device, in a storage of its own.
at::Tensor make_deferred(const at::Tensor& shape, c10::Device device);
// Another view of a deferred tensor's storage.
at::Tensor make_view(const at::Tensor& deferred, const at::Tensor& shape);
// The same shape over the twin.
at::Tensor twin_of(const at::Tensor& deferred);

// Gives the storages of these deferred tensors memory and values.
void make_resident(const std::vector<at::Tensor>& deferred);
// Lets a resident tensor's storage use this memory, which holds its value.
void make_resident(const at::Tensor& deferred, c10::Storage memory);
// From now on the value is what `writer` makes of it.
void make_recorded(const at::Tensor& deferred, OperatorPtr writer);

}  // namespace fsdp::deferred
