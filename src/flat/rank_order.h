// Copies between the two orders of a FlatParameter's elements: [Note: two orders of a unit's elements].
//
// Tensors in rank order, and whole buffers, have layout().padded_numel() elements of any dtype. Where both orders are
// the same, a copy may be avoided: ask layout().is_in_rank_order().
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "flat/flat_parameter.h"
#include "fsdp/communicator.h"

namespace fsdp::flat {

// Copies all parameters. Padding may be copied along.
void copy_to_whole(const FlatParameter& flat, const at::Tensor& rank_order, const at::Tensor& whole);
// Copies all parameters, and sets the padding to zero.
void copy_to_rank_order(const FlatParameter& flat, const at::Tensor& whole, const at::Tensor& rank_order);

// Copies this rank's parts from a tensor that is laid out like the shard into a whole buffer.
void copy_own_part(const FlatParameter& flat, const at::Tensor& like_shard, const at::Tensor& whole);
// Returns the elements of a whole buffer that each rank holds, without padding.
RankRanges ranges_in_whole(const FlatLayout& layout);
// Returns this rank's parts of a whole buffer, laid out like the shard, with padding of zeros. It is a view of the
// buffer if the orders are the same.
at::Tensor own_part(const FlatParameter& flat, const at::Tensor& whole);

// Returns the parameters whose part of this rank has other bits in a whole buffer than in a tensor that is laid out
// like the shard, cast to the buffer's dtype.
std::vector<int64_t> parameters_that_differ(const FlatParameter& flat, const at::Tensor& whole,
                                            const at::Tensor& like_shard);

// Writes or adds a value of one parameter, with its full shape, in rank order.
void write_in_rank_order(const FlatParameter& flat, const at::Tensor& rank_order, int64_t parameter,
                         const at::Tensor& value, bool add);
void zero_in_rank_order(const FlatParameter& flat, const at::Tensor& rank_order, int64_t parameter);
void zero_padding(const FlatParameter& flat, const at::Tensor& rank_order);

}  // namespace fsdp::flat
