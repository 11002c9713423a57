// Units made without modules and without a policy: cut from the order in which a model uses its parameters.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace fsdp {

// FQNs of parameters in the order of their first use. One entry has the parameters that one operator used together,
// such as the weight and the bias of a Linear. An entry that appears twice is used again by forward after others. An
// empty entry: parameters of other units were used in between.
using ExecutionOrder = std::vector<std::vector<std::string>>;

// See Options::auto_units. The first forward runs with every parameter as a unit by itself, which is slow, but needs
// little memory and shows the order. When the first backward begins (or at ShardedModule::cut_units), parameters that
// are used one after the other become units, whatever modules they belong to: parts of a layer, several small layers,
// siblings without their parent. Parameters that one operator uses stay together. Shards move to their new owners in
// one more gather of each parameter. Tensors of the module, leaves, and optimizers built on them stay the same objects.
// Optimizer state that a constructor made in the shape of a leaf (Adagrad) gets the leaf's new size; if it was written
// to before, this is an error. Parameters that were not used so far follow in module order.
//
// A parameter that one forward uses again after others, such as an embedding that is also the head, stays gathered from
// forward to backward, as the root unit of a policy does, if that takes at most a quarter more memory than gathering it
// again, or fits `memory_bound`.
struct AutoUnits {
  // Approximate upper bound on the bytes of a unit's gathered parameters; units of one model are made about equal.
  // Parameters that cannot be separated and are larger form a unit by themselves. Unset: 1/32 of all parameters, but at
  // most 33 million elements, beyond which larger collectives are hardly faster (FSDP paper, section 3.2.1 and figure
  // 2).
  std::optional<int64_t> target_bytes{};
  // Upper bound, in bytes, on the memory that gathered parameters and gradient buffers take together on a rank at any
  // time (docs/architecture.md, Memory). Units are made smaller where necessary; if the bound cannot be met, an error
  // says what is needed at least. Unset: no bound.
  std::optional<int64_t> memory_bound{};
  // The order, if it is known: the result of ShardedModule::execution_order() in an earlier run. fully_shard itself
  // then makes the units, and communicates. Needed if optimizer state is loaded before the first backward.
  ExecutionOrder order{};
};

}  // namespace fsdp
