// Gradients of one FlatParameter that were reduced in the shard group and wait for a later backward to reduce them over
// the replicas (BackwardOptions::requires_all_reduce).
#pragma once

#include <ATen/core/Tensor.h>

#include "engine/buffer_pool.h"
#include "engine/parameter_mask.h"
#include "flat/flat_parameter.h"

namespace fsdp::engine {

// Threads: guarded by the caller's lock.
class UnreplicatedSum {
 public:
  explicit UnreplicatedSum(const flat::FlatParameter& flat) : flat_(flat), captured_(flat.layout().num_parameters()) {}

  bool any() const { return sum_.defined(); }
  // Adds a result of the shard group, laid out like the shard, which must be memory of the pool, and takes it over.
  void add(at::Tensor& reduced, const ParameterMask& captured, BufferPool& pool);
  // Adds the sum to `partial`, and its parameters to `captured`, and ends it. Does nothing and returns false if there
  // is none.
  bool move_into(const at::Tensor& partial, ParameterMask& captured, BufferPool& pool);
  // Ends the sum and releases its memory.
  void release(BufferPool& pool);

  // Clears one parameter's gradient, or sets it to zero.
  void clear(int64_t parameter);
  void zero(int64_t parameter);

 private:
  const flat::FlatParameter& flat_;
  at::Tensor sum_;  // laid out like the shard, shard dtype, from the pool
  ParameterMask captured_;
};

}  // namespace fsdp::engine
