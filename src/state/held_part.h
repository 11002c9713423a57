// What this rank holds of a training run's state, piece by piece.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "fsdp/fully_shard.h"

namespace fsdp {

// Elements [begin, end) of one original parameter, in the order in which it lies in memory.
struct HeldPart {
  std::string fqn;                 // the first of names
  std::vector<std::string> names;  // several of a shared parameter
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;  // empty: row-major
  int64_t begin = 0;
  int64_t end = 0;
  at::Tensor values;  // 1-D, a view of the shard
  // The leaf that the optimizer has for it, and where in the leaf the part begins.
  at::Tensor leaf;
  int64_t leaf_offset = 0;
  // The same elements are held by `replicas` ranks, of which this is number `replica`.
  int64_t replica = 0;
  int64_t replicas = 1;

  int64_t numel() const { return end - begin; }
  // The part of it that this replica writes: together replicas write each element once.
  std::pair<int64_t, int64_t> to_write() const;
};

// Of all parameters of the tree, in unit order; empty parts included.
std::vector<HeldPart> held_parts(const ShardedModule& model);

}  // namespace fsdp
