// The part of a training run's state that this rank holds, piece by piece.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "fsdp/fully_shard.h"

namespace fsdp::flat {
class FlatParameter;
}  // namespace fsdp::flat

namespace fsdp::state {

// Elements [begin, end) of one original parameter, in the order in which they lie in memory.
struct HeldPart {
  std::string fqn;                 // the first entry of `names`
  std::vector<std::string> names;  // more than one for a shared parameter
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;  // empty: row-major
  int64_t begin = 0;
  int64_t end = 0;
  // The leaf that the optimizer has for the parameter, and the offset of this part in the leaf.
  at::Tensor leaf;
  int64_t leaf_offset = 0;
  // Its offset among the parameter's elements in the shard: not 0 if the rank holds several ranges of a parameter that
  // is split over ranks (tensor parallelism).
  int64_t shard_offset = 0;
  // `replicas` ranks hold the same elements; this rank is number `replica` of them.
  int64_t replica = 0;
  int64_t replicas = 1;

  const flat::FlatParameter* flat = nullptr;
  int64_t index = 0;  // of the parameter in `flat`

  int64_t numel() const { return end - begin; }
  at::ScalarType dtype() const { return leaf.scalar_type(); }
  // A 1-D view of the shard, made by each call: of 30,000 parameters most callers want the names only.
  at::Tensor values() const;
  // The elements [begin, end) that this replica writes. Together the replicas write each element once.
  std::pair<int64_t, int64_t> to_write() const;
};

// The parts of all parameters of the tree, in unit order, including empty parts. Names, sizes and elements are those of
// whole parameters. A parameter that is split into several layers (TensorParallelRule::sections) has a part for each of
// them, which follow one another: as many on all ranks.
std::vector<HeldPart> held_parts(const ShardedModule& model);

// One entry for each parameter, in the same order, with name, dtype and sizes. `strides` is the memory order in which
// for_each_full_parameter passes the whole parameter on: row-major if it is split over ranks.
std::vector<HeldPart> whole_parameters(const ShardedModule& model);

// By a further name of a parameter that its module does not have, the parameter's FQN.
using Aliases = std::map<std::string, std::string>;
// Returns the parts with these names, too.
std::vector<HeldPart> with_aliases(std::vector<HeldPart> parts, const Aliases& aliases);

}  // namespace fsdp::state
