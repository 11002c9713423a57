// Version counters, by which the engine detects writes to a shard and reports them to autograd.
#pragma once

#include <ATen/core/Tensor.h>

namespace fsdp::seams {

// Returns how often the tensor, or any leaf or view made of it, was written in place.
uint32_t version_of(const at::Tensor& tensor);

// Returns a detached tensor that shares the data and the version counter of `part`. Its .data() shares the counter as
// well: torch's SGD and RMSprop write through .data(), which ordinarily has a counter of its own.
at::Tensor make_versioned_leaf(const at::Tensor& part);

// Makes `leaf`, which must come from make_versioned_leaf, share the data, the dispatch keys and the version counter of
// `part`. The leaf stays the same object, so an optimizer that holds it works on the new memory.
void move_versioned_leaf(const at::Tensor& leaf, const at::Tensor& part);

// Makes autograd reject values of this tensor that were saved for backward so far, as after an in-place write.
void bump_version(const at::Tensor& tensor);

}  // namespace fsdp::seams
