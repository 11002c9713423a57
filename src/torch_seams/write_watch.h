// Watches the memory of a shard for writes that its version counter does not count: through .data of a view, a numpy
// array, a DLPack tensor, or a pointer.
//
// LibTorch 2.13 calls a hook of a storage before it hands out a pointer to write with, once. Older versions have no
// such hook; there, nothing is noticed.
#pragma once

#include <ATen/core/TensorBase.h>

namespace fsdp::seams {

// Whether this LibTorch has the hook.
bool can_watch_writes();

// Prepares the storage of `shard` to be watched. From then on, its memory cannot be resized.
void prepare_to_watch(const at::TensorBase& shard);

// Begins to watch anew. Costs next to nothing if nobody has asked for a pointer since the last call.
void watch_writes(const at::TensorBase& shard);

// Whether somebody has got a pointer to write to the memory since the last call of watch_writes(), or keeps one
// (is_exported()). Whether anything was written is then to be found out by a comparison.
bool may_be_written(const at::TensorBase& shard);

// Whether code outside of LibTorch may have kept a pointer: after numpy() or note_export(), and for ever.
bool is_exported(const at::TensorBase& shard);

// Must be called when `tensor` is handed to a library that keeps a pointer to it. Does nothing unless its storage is
// that of a shard.
void note_export(const at::TensorBase& tensor);

}  // namespace fsdp::seams
