// Units without modules and without a policy: cut from the order in which a model uses its parameters.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace fsdp {

// Parameters in the order in which they were used first, by FQN; in one entry those that one operator used together,
// such as the weight and the bias of a Linear. An entry that stands there twice is one that forward uses again after
// others. An empty entry: parameters of other units were used in between.
using ExecutionOrder = std::vector<std::vector<std::string>>;

// See Options::auto_units. The first forward runs with every parameter on its own, which is slow, needs little memory
// and shows the order. When the first backward begins (or at ShardedModule::cut_units), parameters that are used one
// after the other become units, whatever modules they belong to: parts of a layer, several small layers, siblings
// without their parent. What one operator uses stays together. Shards move to their new owners in one more gather of
// each parameter; tensors of the module, leaves, and optimizers built on them stay the same objects, and state that an
// optimizer has made like a leaf in its constructor (Adagrad) gets the leaf's new size. State that was written to
// before is an error then. Parameters that were not used so far follow in module order.
//
// A parameter that one forward uses again after others, such as an embedding that is the head too, stays gathered from
// forward to backward as the root unit of a policy does, if that takes at most a quarter more memory than gathering it
// again, or fits `memory_bound`.
struct AutoUnits {
  // Bytes of a unit's gathered parameters, at most and about: units of one model are made about equal. What cannot be
  // parted and is larger is a unit by itself. Unset: one 32nd of all, and at most 33 million elements, beyond which
  // larger collectives are hardly faster (FSDP paper, section 3.2.1 and figure 2).
  std::optional<int64_t> target_bytes{};
  // Bytes that gathered parameters and gradient buffers together may take at a time on a rank (docs/architecture.md,
  // Memory). Units are made smaller where need be; an error says what is needed at least. Unset: no bound.
  std::optional<int64_t> memory_bound{};
  // The order, where it is known: what ShardedModule::execution_order() returned in an earlier run. Units are then made
  // by fully_shard itself, which communicates. Needed where optimizer state is loaded before the first backward.
  ExecutionOrder order{};
};

}  // namespace fsdp
