// Version counters: how the engine sees that somebody wrote to a shard, and says so to autograd.
#pragma once

#include <ATen/core/Tensor.h>

namespace fsdp::seams {

// How often the tensor, or any leaf or view made of it, was written in place.
uint32_t version_of(const at::Tensor& tensor);

// A detached tensor that shows what `part` shows and shares its version counter, also with its .data(): torch's SGD and
// RMSprop write through .data(), which ordinarily counts for itself.
at::Tensor make_versioned_leaf(const at::Tensor& part);

// The same object as before, which make_versioned_leaf made, shows `part`, carries its dispatch keys and shares its
// version counter: an optimizer that holds the leaf works on it.
void move_versioned_leaf(const at::Tensor& leaf, const at::Tensor& part);

// Makes autograd refuse values of this tensor that were saved for backward so far, as after an in-place write.
void bump_version(const at::Tensor& tensor);

}  // namespace fsdp::seams
